"""KL-Shampoo where gradients change their size, or keep to few directions."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _matrices import gaussian
from _reference import rotations as ref
from _steps import first_update

import optax_matrix as om
from optax_matrix.transforms.sides import Pair

SHAPE, STEPS, AT = (6, 6), 160, 60
STREAM = np.asarray(gaussian(STEPS, *SHAPE, seed=1), np.float32)


def run(grads, tx):
    """Updates of streams of matrices, and the largest number of each state."""
    grads = {name: {"kernel": np.float32(g).mT} for name, g in grads.items()}

    def body(state, g):
        updates, state = tx.update(g, state)
        floats = [x for x in jax.tree.leaves(state) if x.dtype.kind == "f"]
        largest = jnp.max(jnp.stack([jnp.max(abs(x)) for x in floats]))
        return state, (updates, largest)

    def scan(grads):
        start = tx.init(jax.tree.map(lambda g: g[0], grads))
        return jax.lax.scan(body, start, grads)[1]

    updates, largest = jax.jit(scan)(grads)
    out = {name: np.float64(x["kernel"]).mT for name, x in updates.items()}
    return out, np.asarray(largest)


def norms(x):
    return np.asarray(np.linalg.norm(x, axis=(1, 2)))


def ours(scales):
    grads = STREAM * np.asarray(scales, np.float32)[:, None, None]
    return norms(run({"": grads}, om.scale_by_kl_shampoo())[0][""])


def letter(scales):
    step = functools.partial(ref.kl_shampoo, interval=10)
    state, grads = {}, STREAM.astype(np.float64) * np.array(scales)[:, None, None]
    return np.array([np.linalg.norm(step(g, state)) for g in grads])


ONES = np.ones(STEPS)
STREAMS = {
    "a small first gradient": np.where(np.arange(STEPS) == 0, 1e-4, ONES),
    "larger from a step on": np.where(np.arange(STEPS) < AT, ONES, 1e4),
}


@pytest.mark.broad
@pytest.mark.parametrize("name", STREAMS)
def test_updates_keep_their_size_when_gradients_change_theirs(name):
    """By the letter of the paper, both sides average the size, and updates vanish."""
    scales = STREAMS[name]
    after = slice(1, 60) if scales[0] < 1 else slice(AT, AT + 60)
    found = (ours(scales) / ours(ONES))[after]
    assert found.min() > 0.5
    assert found.max() < 10
    assert np.median((letter(scales) / letter(ONES))[after]) < 0.1


@pytest.mark.broad
def test_a_matrix_that_was_idle_comes_back():
    idle = np.where((np.arange(STEPS) > 20) & (np.arange(STEPS) < AT + 60), 0, ONES)
    found = (ours(idle) / ours(ONES))[AT + 60 :]
    assert found.min() > 0.5
    assert found.max() < 10


@pytest.mark.broad
def test_ordinary_steps_are_those_of_the_paper():
    np.testing.assert_allclose(ours(ONES), letter(ONES), rtol=2e-3)


@pytest.mark.broad
def test_an_entry_that_is_an_outlier_leaves_the_others_alone():
    """Both sides were divided by one number, and the others grew 1e4-fold."""
    tx = om.scale_by_kl_shampoo(policy="identity")
    outlier = STREAM.copy()
    outlier[AT, 0, 0] *= 1e6
    updates, _ = run({"outlier": outlier, "ordinary": STREAM}, tx)
    others = {name: norms(x[:, 1:, 1:]) for name, x in updates.items()}
    ratio = others["outlier"][AT:] / others["ordinary"][AT:]
    assert ratio.min() > 0.3
    assert ratio.max() < 2


@pytest.mark.broad
@pytest.mark.parametrize("policy", ["identity", "eigen"])
def test_a_row_or_column_that_comes_back_leaves_the_others_alone(policy):
    """They fell to a fifth: the other side's averages had counted its growth."""
    back = STEPS - 20
    row, col = STREAM.copy(), STREAM.copy()
    row[10:back, 0] = 0
    col[10:back, :, 0] = 0
    tx = om.scale_by_kl_shampoo(b1=0.0, b2=0.9, policy=policy)
    updates, _ = run({"row": row, "col": col, "ordinary": STREAM}, tx)
    others = {name: norms(x[:, 1:, 1:]) for name, x in updates.items()}
    for name in ("row", "col"):
        ratio = others[name][back:] / others["ordinary"][back:]
        assert ratio.min() > 0.5, name
        assert ratio.max() < 2, name


FORGETFUL = {  # So that averages decay as far in 200 steps as in 7,000 by default.
    "kl_shampoo": lambda **options: om.scale_by_kl_shampoo(b1=0.3, b2=0.5, **options),
    "kl_soap": lambda **options: om.scale_by_kl_soap(b1=0.3, b2=0.5, b3=0.5, **options),
}


LIVE, RANKS = {"always": 1, "every other step": 2}, (1, 3)


def few_directions():
    """Streams of gradients of low rank, and the bases of their range."""
    streams, bases = {}, {}
    for rank in RANKS:
        left, right = gaussian(8, rank, seed=2), gaussian(rank, 12, seed=3)
        grads = left @ gaussian(STEPS, rank, rank, seed=4) @ right
        for name, period in LIVE.items():
            on = np.arange(STEPS) % period == 0
            streams[f"{rank} {name}"] = grads * on[:, None, None]
            bases[f"{rank} {name}"] = np.linalg.qr(left)[0], np.linalg.qr(right.T)[0]
    return streams, bases


@pytest.mark.broad
@pytest.mark.parametrize("name", FORGETFUL)
def test_gradients_of_few_directions_keep_updates_in_their_range(name):
    """Where eigenvalues may vanish, they divide rounding noise, up to NaN."""
    streams, bases = few_directions()
    updates, largest = run(streams, FORGETFUL[name]())
    assert largest.max() < 1e3
    for stream, x in updates.items():
        left, right = bases[stream]
        outside = norms(x - left @ (left.T @ x @ right) @ right.T)
        # In the first steps the bases of a null space are arbitrary.
        assert outside[STEPS // 4 :].max() < 0.1 * np.median(norms(x)), stream
        assert norms(x).max() < 30 * np.median(norms(x)), stream


@pytest.mark.broad
def test_rounding_of_a_momentum_in_few_bits_is_not_enlarged():
    """Divided by the least eigenvalues, noise became 40 times an ordinary update."""
    streams, _ = few_directions()
    updates, _ = run(streams, FORGETFUL["kl_shampoo"](mu_dtype=jnp.bfloat16))
    exact, _ = run(streams, FORGETFUL["kl_shampoo"]())
    for stream, x in updates.items():
        assert norms(x).max() < 3 * norms(exact[stream]).max(), stream
        assert norms(x)[-40:].max() > 0.5 * norms(exact[stream])[-40:].max(), stream


@pytest.mark.parametrize("shape", [(8, 6), (6, 8)])
def test_a_row_or_column_beyond_the_bound_leaves_the_others_alone(shape):
    """One share per column shrank all rows, and ones became 4e-8."""
    tx, ones = om.transforms.scale_by_spectrum(0.98), np.ones(shape, np.float32)
    for where in (0, slice(None)), (slice(None), 0):
        x = ones.copy()
        x[where[::-1]] = 1e5
        spectrum = Pair(*(np.ones(n, np.float32) for n in shape))
        out, _ = first_update(tx, x, spectrum=spectrum)
        expected = np.where(x == 1, 1, 6 / (0.98 * 0.02) / x)
        np.testing.assert_allclose(out, expected, rtol=1e-5)
