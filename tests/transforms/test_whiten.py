"""`whiten`: its noise, its fixed point, and whose state it changes."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _identities import identified
from _matrices import gaussian
from _reference.whitening import kron

import optax_matrix as om
from optax_matrix.linalg.random import folded, normal, seeded

SEED = 3
IDS = {"w": np.array([[7, 0], [7, 1], [5, 0]], np.uint32)}
SHAPE = (3, 4, 6)


def vectors(n):
    return np.asarray(normal(seeded(0), (), 32, n, jnp.float64))


def run(tx, grads):
    """All updates of one stack, and the last state."""
    step = lambda state, g: tx.update({"w": g}, state)[::-1]
    state = tx.init({"w": jnp.asarray(grads[0])})
    state, updates = jax.jit(lambda g: jax.lax.scan(step, state, g))(jnp.asarray(grads))
    return np.asarray(updates["w"]), state


@pytest.mark.broad
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("turned", [False, True])
def test_noise_is_drawn_from_the_identity_and_the_count(turned):
    """By the formula, for every matrix of a stack; a tall one is seen transposed."""
    grads = gaussian(6, *SHAPE, seed=1)
    flip = (lambda x: np.swapaxes(x, -1, -2)) if turned else (lambda x: x)
    tx = om.transforms.whiten(
        side="short", damping=0.3, update_interval=2, seed=SEED, max_rms=None
    )
    tx = identified(tx, IDS)
    got = flip(run(tx, flip(grads))[0])
    for i, numbers in enumerate(IDS["w"]):

        def noise(t, shape, numbers=numbers):
            key = folded(seeded(SEED), jnp.array([*numbers, t - 1], jnp.uint32))
            return np.asarray(normal(key, (), *shape, jnp.float64))

        options = {"damping": 0.3, "eps": 2.0**-52, "noise": noise, "interval": 2}
        step = partial(kron, vectors=vectors, b1=0.0, max_rms=np.inf, **options)
        state = {}
        want = np.stack([step(g, state, max_entry=np.inf) for g in grads[:, i]])
        np.testing.assert_allclose(got[:, i], want, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_factors_whiten_a_stream_of_gradients():
    """Both sides of whitened gradients have unit covariance at the end."""
    rng = np.random.default_rng(0)
    left, right = gaussian(4, 4, seed=1), gaussian(6, 6, seed=2)
    grads = left @ rng.standard_normal((4000, 4, 6)) @ right
    tx = om.transforms.whiten(factor_rate=0.05, max_rms=None)
    updates, _ = run(tx, np.float32(grads))
    x = updates[2000:]
    rows = np.mean(x @ np.swapaxes(x, 1, 2), axis=0) / 6
    cols = np.mean(np.swapaxes(x, 1, 2) @ x, axis=0) / 4
    np.testing.assert_allclose(rows, np.eye(4), atol=0.15)
    np.testing.assert_allclose(cols, np.eye(6), atol=0.15)


@pytest.mark.broad
@pytest.mark.daily("1.152921504606847e+18")
@pytest.mark.parametrize("size", [2.0**-60, 2.0**60])
def test_updates_do_not_depend_on_the_scale_of_the_loss(size):
    grads = np.float32(gaussian(5, *SHAPE))
    (got, _), (want, _) = (
        run(om.transforms.whiten(), x) for x in (size * grads, grads)
    )
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.broad
def test_without_a_scale_the_first_factors_bring_the_gradient_to_size_one():
    g = 5 * np.float32(gaussian(1, 3, 4))
    start = partial(om.transforms.whiten, factor_rate=1e-9, max_rms=None)
    got, _ = run(start(), g)
    np.testing.assert_allclose(got, g / np.mean(g**4) ** 0.25, rtol=1e-5)
    got, _ = run(start(init_scale=0.5), g)
    np.testing.assert_allclose(got, g / 4, rtol=1e-5)


@pytest.mark.broad
def test_factors_move_at_their_turn_and_for_their_matrix():
    """A matrix whose gradients are zero so far begins later, with its own count."""
    grads = np.float32(gaussian(5, *SHAPE))
    grads[:3, 1] = 0
    tx, state = (
        om.transforms.whiten(update_interval=2),
        om.transforms.whiten().init({"w": grads[0]}),
    )
    update, moved = jax.jit(tx.update), []
    for g in grads:
        before = state.factor["w"].rows
        _, state = update({"w": jnp.asarray(g)}, state)
        moved.append(jnp.any(state.factor["w"].rows != before, axis=(1, 2)).tolist())
    assert moved == [
        [True, False, True],
        [False, False, False],
        [True, False, True],
        [False, True, False],
        [True, False, True],
    ]
    assert state.count["w"].tolist() == [5, 2, 5]


@pytest.mark.broad
@pytest.mark.daily("momentum")
@pytest.mark.parametrize("statistics", ["gradient", "momentum"])
def test_a_gradient_of_zeros_leaves_the_factors_as_they_are(statistics):
    """Or they would grow without end: nothing is there to whiten."""
    grads = np.float32(gaussian(4, *SHAPE))
    tx = om.transforms.whiten(statistics, momentum=om.momentum(0.9))
    _, before = run(tx, grads)
    zeros = np.zeros((1000, *SHAPE), np.float32)
    updates, after = run(tx, np.concatenate([grads, zeros]))
    jax.tree.map(np.testing.assert_array_equal, after.factor, before.factor)
    assert np.isfinite(updates).all()


@pytest.mark.broad
def test_the_largest_entries_of_both_factors_are_equal():
    rows, cols = run(om.transforms.whiten(side="short"), gaussian(9, 3, 8))[1].factor[
        "w"
    ]
    np.testing.assert_allclose(abs(rows).max(), abs(cols).max(), rtol=1e-5)
    assert (rows.shape, cols.shape) == ((3, 3), (8, 1))


@pytest.mark.broad
def test_updates_are_limited():
    grads = np.float32(gaussian(1, *SHAPE))
    got, _ = run(om.transforms.whiten(init_scale=10.0, factor_rate=1e-9), grads)
    np.testing.assert_allclose(np.sqrt(np.mean(got**2, axis=(2, 3))), 2, rtol=1e-5)


@pytest.mark.broad
def test_a_tiny_first_gradient_leaves_factors_that_go_on():
    """Whitened entries of the next one would overflow before they are limited."""
    grads = np.float32(gaussian(4, *SHAPE))
    grads[0] *= np.float32(2e-38)
    grads[1] *= 10
    updates, state = run(om.transforms.whiten(max_rms=2.0), grads)
    assert np.isfinite(updates).all()
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(state))


@pytest.mark.broad
def test_a_gradient_of_1e20_leaves_factors_that_go_on():
    grads = np.float32(gaussian(4, *SHAPE))
    grads[1] *= 1e20
    updates, state = run(om.transforms.whiten(init_scale=1e3), grads)
    assert np.isfinite(updates).all()
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(state))
