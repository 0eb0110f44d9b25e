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
    params = {"kernel": jnp.zeros(SHAPE)}

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


def normal(steps=STEPS, seed=0):
    shape = (steps, *SHAPE)
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


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
