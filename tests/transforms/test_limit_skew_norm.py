"""The bound on skew-symmetric blocks, and what it is for."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _matrices import gaussian, ones, zeros

import optax_matrix as om
from optax_matrix import linalg
from optax_matrix.transforms import limit_skew_norm


def skew(b, *batch):
    x = gaussian(*batch, b, b, seed=b)
    return x - np.swapaxes(x, -1, -2)


@pytest.mark.slow
@pytest.mark.parametrize("b", [2, 7, 32])
def test_the_norm_is_a_bound_and_not_a_loose_one(b):
    q = skew(b, 3)
    bound = jax.jit(linalg.skew_norm)(jnp.float32(q))
    norm = np.linalg.norm(q, 2, axis=(-2, -1))
    assert (bound > norm * (1 - 1e-5)).all()
    assert (bound < norm * (b / 2) ** 0.125 * (1 + 1e-5)).all()
    for scale in (1e-30, 1e30):
        scaled = linalg.skew_norm(jnp.float32(q) * scale) / scale
        np.testing.assert_allclose(scaled, bound, rtol=1e-5)
    assert not linalg.skew_norm(jnp.zeros((3, b, b))).any()


@pytest.mark.broad
def test_blocks_within_the_bound_move_freely_and_others_along_the_edge():
    q = 0.1 * np.asarray(linalg.from_skew(jnp.float32(skew(7, 3))))
    update = np.stack([0 * q[0], q[1] * 20, q[2] / 7])
    tx = limit_skew_norm(5.0)
    step = jax.jit(lambda u, q: tx.update({"w": u}, tx.init({"w": q}), {"w": q})[0])
    limited = np.asarray(step(update, q)["w"])
    np.testing.assert_array_equal(limited[::2], update[::2])
    new = q + limited
    ratio = new[1] / q[1]
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-5)
    norm = jax.jit(lambda x: linalg.skew_norm(linalg.to_skew(x, 7)))(new)
    np.testing.assert_allclose(norm[1], 5.0, rtol=1e-5)
    assert np.isnan(step(update * np.nan, q)["w"]).all()
    # Blocks of one row and column have nothing to turn.
    empty = jnp.asarray(zeros(3, 0))
    assert tx.update(empty, tx.init(empty), empty)[0].shape == (3, 0)


@functools.partial(jax.jit, static_argnums=0)
def trained(max_norm, w):
    """Weights after a hundred updates by one gradient, with a merge every fifty."""
    options = {"block": 16, "merge_interval": 50, "max_norm": max_norm}
    tx = om.poet(2e-2, terms=4, **options)
    grads = {"kernel": np.float32(gaussian(16, 16, seed=9))}

    def step(carry, _):
        params, state = carry
        updates, state = tx.update(grads, state, params)
        return (optax.apply_updates(params, updates), state), None

    params = {"kernel": w}
    return jax.lax.scan(step, (params, tx.init(params)), length=100)[0][0]["kernel"]


@pytest.mark.slow
@pytest.mark.parametrize("max_norm", [0.5, pytest.param(0.3, marks=pytest.mark.slow)])
def test_singular_values_stay_where_a_steady_gradient_would_blow_them_up(max_norm):
    w = jnp.float32(gaussian(16, 16))
    values = lambda x: np.linalg.svd(np.float64(x))[1]
    change = lambda x: np.abs(values(x) / values(w) - 1).max()
    free = trained(None, w)
    assert not np.isfinite(free).all() or change(free) > 10
    # Two merges of two sides; and rounding, of the largest, in the smallest.
    rounding = 1e-6 * values(w)[0] / values(w)[-1]
    new = trained(max_norm, w)
    assert change(new) < 4 * max_norm**10 / 2 + rounding
    assert np.linalg.norm(new - w) > np.linalg.norm(w)  # It has gone far all the same.


@pytest.mark.slow
def test_oft_turns_as_far_as_it_likes():
    """In one go, by two radians, which a bound of 0.5 does not allow."""
    turn = (
        jnp.eye(4)
        .at[:2, :2]
        .set(jnp.array([[jnp.cos(2.0), -jnp.sin(2.0)], [jnp.sin(2.0), jnp.cos(2.0)]]))
    )
    left = {}
    for name, options in (("exact", {}), ("bounded", {"terms": 4})):
        tx = om.oft(5e-2, block=4, **options)

        def step(carry, _, tx=tx):
            params, state = carry
            grads = jax.tree.map(lambda w: w - turn, params)
            updates, state = tx.update(grads, state, params)
            return (optax.apply_updates(params, updates), state), None

        params = {"kernel": jnp.eye(4)}
        scan = jax.jit(lambda s, step=step: jax.lax.scan(step, s, length=200)[0][0])
        end = scan((params, tx.init(params)))["kernel"]
        left[name] = float(jnp.linalg.norm(end - turn))
    assert left["exact"] < 1e-2 < 0.5 < left["bounded"]


def test_parts_are_hashable():
    assert hash(om.reparameterize(block=4)) == hash(om.reparameterize(block=4))


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match=r"`max_norm` must be positive, got 0\.0"):
        limit_skew_norm(0.0)
    with pytest.raises(ValueError, match="`max_norm` must be positive, got -1"):
        om.poet(1e-3, max_norm=-1)
    with pytest.raises(ValueError, match="`max_norm` must be positive"):
        om.reparameterize().optimizer(optax.sgd(1.0), optax.sgd(1.0), max_norm=0)
    with pytest.raises(ValueError, match="`params` must be passed to `update`"):
        limit_skew_norm().update({}, optax.EmptyState())
    with pytest.raises(ValueError, match="`params` must be triangles"):
        limit_skew_norm().update(ones(5), optax.EmptyState(), ones(5))
    with pytest.raises(ValueError, match=r"`max_norm` must be one of .*a number"):
        om.poet(1e-3, max_norm="always")
    with pytest.raises(ValueError, match="`orthogonal` must be a function"):
        om.poet(1e-3, orthogonal=0)
    with pytest.raises(ValueError, match="`terms` must be None beside `orthogonal`"):
        om.poet(1e-3, terms=4, orthogonal=linalg.cayley)
