"""RACS's fixed point, its indifference to scale, and its survival of extremes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _reference import kernels, optimizers

from optax_matrix import recipes
from optax_matrix.linalg import rank_one_scales

SHAPE = (5, 7)  # in x out
STEPS = 30


def runner(tx):
    params = {"kernel": np.zeros(SHAPE, np.float32)}

    @jax.jit
    def scan(grads):
        def body(state, g):
            updates, state = tx.update({"kernel": g}, state)
            return state, updates["kernel"]

        state, updates = jax.lax.scan(body, tx.init(params), grads)
        return updates, state.inner_state

    return scan


RACS = recipes.scale_by_racs()
run = runner(RACS)  # Compiled once: every test runs STEPS steps.


def reference_path(grads, **arguments):
    state, path = {}, []
    for g in np.swapaxes(grads, -1, -2).astype(np.float64):
        path.append(-optimizers.racs(np.zeros_like(g), g, state, 1.0, **arguments).T)
    return np.stack(path)


LITERAL = {"max_shrink": None, "max_rms": None}  # As the paper prints it.


def algorithm_1(grads, beta=0.9, alpha=0.05, gamma=1.01):
    """RACS as printed, of gradients m x n with m <= n; the negative updates."""
    s, q, phi, out = 0.0, 0.0, 0.0, []
    for t, g in enumerate(grads, start=1):
        q_new = np.ones(len(g))
        for _ in range(5):  # Equation 16.
            s_new = np.diag(g.T @ np.diag(q_new) @ g) / np.sum(q_new**2)
            q_new = np.diag(g @ np.diag(s_new) @ g.T) / np.sum(s_new**2)
        s = beta * s + (1 - beta) * s_new
        q = beta * q + (1 - beta) * q_new
        scaled = np.diag(q**-0.5) @ g @ np.diag(s**-0.5)
        norm = np.linalg.norm(scaled)
        eta = gamma / max(norm / phi, gamma) if t > 1 else 1.0
        phi = eta * norm
        out.append(eta * alpha * scaled)
    return np.stack(out)


@pytest.mark.broad
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("spread", [0.1, 0.3, 1.0])
def test_matrices_with_more_outputs_than_inputs_are_transposed(spread):
    """The paper has m <= n. Our view is (out, in), a Flax kernel (in, out).

    Started from q = 1 on the other side, updates would differ by up to 4%, 7% and 34%
    for the three spreads, since both sides are averaged separately.
    """
    rng = np.random.default_rng(0)
    rows = np.exp(spread * rng.standard_normal((6, 6, 1)))
    paper = rows * rng.standard_normal((6, 6, 18))  # Steps of m x n.
    both = {"wide": np.swapaxes(paper, -1, -2), "tall": paper}  # (in, out)
    tx = recipes.scale_by_racs(**LITERAL)

    @jax.jit
    def scan(grads):
        start = tx.init(jax.tree.map(lambda g: g[0], grads))
        step = lambda state, g: tx.update(g, state)[::-1]
        return jax.lax.scan(step, start, grads)[1]

    got = scan({name: {"kernel": jnp.asarray(g)} for name, g in both.items()})
    want = algorithm_1(paper)
    wide = np.swapaxes(got["wide"]["kernel"], -1, -2)
    np.testing.assert_allclose(wide, want, rtol=1e-9)
    np.testing.assert_allclose(got["tall"]["kernel"], want, rtol=1e-9)


def normal(steps=STEPS, seed=0):
    shape = (steps, *SHAPE)
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.slow
def test_fixed_point_is_the_leading_singular_vectors_of_the_squares():
    g = normal(1)[0].T
    row, col = rank_one_scales(jnp.asarray(g), 30)
    u, _, vt = np.linalg.svd(g.astype(np.float64) ** 2)
    for scale, vector in ((row, u[:, 0]), (col, vt[0])):
        squares = np.asarray(scale, np.float64) ** 2
        squares /= np.linalg.norm(squares)
        np.testing.assert_allclose(squares, np.abs(vector), atol=1e-5)


def test_restatement_has_the_same_fixed_point():
    s, q = kernels.racs_fixed_point(normal(1)[0].T.astype(np.float64), 60)
    u, _, vt = np.linalg.svd(normal(1)[0].T.astype(np.float64) ** 2)
    np.testing.assert_allclose(s / np.linalg.norm(s), np.abs(vt[0]), atol=1e-10)
    np.testing.assert_allclose(q / np.linalg.norm(q), np.abs(u[:, 0]), atol=1e-10)


@pytest.mark.parametrize("factor", [2.0**-10, 2.0**10, 2.0**66, 2.0**-66])
def test_update_is_bit_close_under_a_scaled_loss(factor):
    grads = normal()
    base, _ = run(grads)
    scaled, _ = run(np.float32(factor) * grads)
    # A power of two changes exponents only; 1e-6 leaves room for fused products.
    np.testing.assert_allclose(scaled, base, rtol=1e-6, atol=1e-9)


def test_first_updates_are_larger_without_bias_correction():
    grads = np.broadcast_to(normal(1), (STEPS, *SHAPE))
    plain, _ = run(grads)
    corrected, _ = runner(recipes.scale_by_racs(bias_correction=True))(grads)
    ratios = np.linalg.norm(plain, axis=(1, 2)) / np.linalg.norm(corrected, axis=(1, 2))
    ratios = ratios[:4]
    expected = 1 / (1 - 0.9 ** np.arange(1, 5))  # 10, 5.3, 3.7, 2.9
    np.testing.assert_allclose(ratios, expected, rtol=1e-5)


@pytest.mark.parametrize("extreme", [1e20, 1e-20])
def test_one_extreme_gradient_is_followed_exactly(extreme):
    grads = normal()
    grads[10] *= np.float32(extreme)
    updates, state = run(grads)
    expected = reference_path(grads)
    finite = [np.isfinite(x).all() for x in jax.tree.leaves(state)]
    assert all(finite)
    # float32 through 30 averages and a growth limiter: 1e-4 of each step's own size.
    size = np.abs(expected).max(axis=(1, 2), keepdims=True)
    assert (size > 0).all()
    np.testing.assert_allclose(updates / size, expected / size, atol=1e-4)


def test_zero_gradient_gives_zero_and_leaves_the_state_alone():
    grads = normal()
    first, last = grads.copy(), grads.copy()
    first[3:], last[:-3], last[-3:] = 0, 0, grads[:3]  # Three gradients, then or late.
    updates, state = run(first)
    late, same = run(last)
    np.testing.assert_array_equal(updates[3:], 0)
    np.testing.assert_array_equal(late[-3:], updates[:3])
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(same), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.broad
def test_zero_rows_and_columns_stay_zero():
    grads = normal()
    grads[:, 2, :] = 0
    grads[:, :, 3] = 0
    updates, _ = run(grads)
    np.testing.assert_array_equal(updates[:, 2, :], 0)
    np.testing.assert_array_equal(updates[:, :, 3], 0)
    assert (np.abs(np.delete(updates[:, :2], 3, axis=2)) > 0).all()


def test_state_is_m_plus_n_plus_one_numbers():
    abstract = jax.eval_shape(
        RACS.init, {"kernel": jax.ShapeDtypeStruct(SHAPE, jnp.bfloat16)}
    )
    leaves = jax.tree.leaves(abstract.inner_state)
    assert sum(leaf.size for leaf in leaves) == sum(SHAPE) + 1
    assert {leaf.dtype for leaf in leaves} == {jnp.dtype(jnp.float32)}


def hard_streams():
    """Four gradients (in x out) each, of which the fixed point bounds nothing."""
    rng = np.random.default_rng(0)
    noise = rng.standard_normal((4, 12, 18))
    blocks = np.kron(np.diag([1.0, 0.3, 1e-3]), np.ones((4, 6)))
    spike = noise.copy()
    spike[:, 3, 5] = 1e4
    turns = noise * (np.arange(4)[:, None, None] == np.arange(12)[:, None] // 3)
    diagonals = [np.diag([1.0, x]) for x in (0.5, 0.1, 1e-12)]
    streams = {f"{d[1, 1]:g}": np.broadcast_to(d, (4, 2, 2)) for d in diagonals}
    streams |= {"blocks": noise * blocks, "spike": spike, "turns": turns}
    streams["wide"] = np.swapaxes(streams["blocks"], -1, -2)
    return {name: np.float32(x) for name, x in streams.items()}


def updates_of_trees(tx, streams):
    """Updates of one tree with a kernel for each stream."""

    @jax.jit
    def scan(grads):
        start = tx.init(jax.tree.map(lambda g: jnp.zeros_like(g[0]), grads))
        return jax.lax.scan(lambda s, g: tx.update(g, s)[::-1], start, grads)[1]

    return scan(streams)


@pytest.mark.broad
def test_no_row_exceeds_its_bound():
    """Literally: 2.6e3 and 1e16 for diag(1, 0.5) and diag(1, 0.1) at scale 1."""
    grads = hard_streams()
    updates = updates_of_trees(recipes.scale_by_racs(limiter=1e9), grads)
    for name, u in updates.items():
        rows = -1 if u.shape[-2] < u.shape[-1] else -2  # The longer side, (in, out).
        rms = np.sqrt(np.mean(np.square(u, dtype=np.float64), axis=rows))
        assert rms.max() <= 0.05 * 4 / (1 - 0.9) * (1 + 1e-5), name
        # Nothing that has a gradient is left out, however small its block is.
        live = np.abs(grads[name]).max(axis=rows) > 0
        assert (rms[live] > 1e-3).all(), name


@pytest.mark.broad
def test_ordinary_matrices_do_not_meet_the_bound():
    """Whatever the sizes of their rows and columns, here over a factor of 20."""
    rng = np.random.default_rng(0)
    grads = rng.standard_normal((STEPS, 2, 24, 40))
    grads[:, 1] *= np.exp(np.linspace(-1.5, 1.5, 24))[:, None]
    streams = {"plain": np.float32(grads[:, 0]), "spread": np.float32(grads[:, 1])}
    bounded = updates_of_trees(recipes.scale_by_racs(), streams)
    literal = updates_of_trees(recipes.scale_by_racs(max_rms=None), streams)
    for name, u in bounded.items():
        np.testing.assert_allclose(u, literal[name], rtol=1e-5, err_msg=name)
