"""`hyperball`: its formula in NumPy, and what it leaves to the inner optimizer."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _raised import raise_warnings

import optax_matrix as om

SHAPES = {"up": (6, 4), "layers": (3, 4, 5), "norm": {"scale": (4,)}}


def draw(seed, dtype=jnp.float32):
    rng = np.random.default_rng(seed)
    one = lambda shape: jnp.asarray(rng.standard_normal(shape), dtype)
    return jax.tree.map(one, SHAPES, is_leaf=lambda x: isinstance(x, tuple))


def norms(w):
    return np.linalg.norm(np.asarray(w, np.float64), axis=(-2, -1), keepdims=True)


def expected(w, direction, radius, rate):
    """One step, matrix by matrix, as the authors write it."""
    w = np.asarray(w, np.float64) + rate * radius * direction / norms(direction)
    return radius * w / norms(w)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("scheduled", [False, True])
def test_steps_are_those_of_the_formula(scheduled):
    rate = (lambda count: 0.1 / (1 + count)) if scheduled else 0.1
    tx = om.weights.hyperball(optax.sgd(3.0, momentum=0.9), rate)
    params = draw(0, jnp.float64)
    state, update = tx.init(params), jax.jit(tx.update)
    for name in ("up", "layers"):
        w = np.asarray(params[name])
        radius, momentum = norms(w), 0
        tree, state = params, tx.init(params)
        for step in range(4):
            grads = draw(step + 1, jnp.float64)
            updates, state = update(grads, state, tree)
            tree = optax.apply_updates(tree, updates)
            momentum = 0.9 * momentum + np.asarray(grads[name])
            w = expected(w, -momentum, radius, 0.1 / (1 + step if scheduled else 1))
            np.testing.assert_allclose(tree[name], w, rtol=1e-9)
            if step == 0:
                scale = updates["norm"]["scale"]
                np.testing.assert_allclose(scale, -3.0 * grads["norm"]["scale"])


@pytest.mark.broad
def test_only_the_direction_of_the_inner_update_counts():
    params, grads = draw(0), draw(1)

    def step(rate):
        tx = om.weights.hyperball(om.muoneq(rate, weight_decay=0.0), 0.01)
        return jax.jit(tx.update)(grads, tx.init(params), params)[0]

    small, large = step(1e-3), step(1.0)
    for name in ("up", "layers"):
        np.testing.assert_allclose(small[name], large[name], rtol=1e-4)
        turned = np.asarray(large[name])
        length = norms(turned) / norms(params[name])
        assert (length < 0.0101).all()
        assert (length > 0.009).all()
    alone = om.muoneq(1e-3, weight_decay=0.0)
    plain, _ = jax.jit(alone.update)(grads, alone.init(params), params)
    np.testing.assert_allclose(small["norm"]["scale"], plain["norm"]["scale"])


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_norms_do_not_drift(dtype):
    tx, params = om.weights.hyperball(optax.sgd(1.0), 0.05), draw(0, dtype)

    @jax.jit
    def run(params, keys):
        def body(carry, key):
            p, state = carry
            grads = jax.tree.map(lambda x: jax.random.normal(key, x.shape, x.dtype), p)
            updates, state = tx.update(grads, state, p)
            return (optax.apply_updates(p, updates), state), None

        return jax.lax.scan(body, (params, tx.init(params)), keys)[0][0]

    end = run(params, jax.random.split(jax.random.key(0), 300))
    for name in ("up", "layers"):
        tolerance = 1e-5 if dtype == jnp.float32 else 4e-3
        np.testing.assert_allclose(norms(end[name]), norms(params[name]), tolerance)
        assert np.abs(np.asarray(end[name] - params[name], np.float32)).max() > 0.1


def test_zero_updates_zero_weights_and_edits():
    tx, params = om.weights.hyperball(optax.sgd(1.0), 0.1), draw(0)
    zeros = jax.tree.map(jnp.zeros_like, params)
    updates, _ = jax.jit(tx.update)(zeros, tx.init(params), params)
    assert max(float(jnp.abs(x).max()) for x in jax.tree.leaves(updates)) < 1e-6
    with pytest.warns(UserWarning, match="never moved by hyperball, .*: up. Init"):
        state = tx.init({**params, "up": zeros["up"]})
    updates, _ = jax.jit(tx.update)(draw(1), state, {**params, "up": zeros["up"]})
    assert not updates["up"].any()
    doubled = jax.tree.map(lambda x: 2 * x, params)
    updates, _ = jax.jit(tx.update)(draw(1), tx.init(params), doubled)
    back = optax.apply_updates(doubled, updates)
    np.testing.assert_allclose(norms(back["up"]), norms(params["up"]), rtol=1e-5)


def test_nan_gradients_leave_the_state():
    tx, params = om.weights.hyperball(om.muon(0.1), 0.1), draw(0)
    state = tx.init(params)
    bad = {**draw(1), "up": jnp.full((6, 4), jnp.nan)}
    updates, new = jax.jit(tx.update)(bad, state, params)
    assert jnp.isnan(updates["up"]).all()
    assert jnp.isfinite(updates["layers"]).all()
    radius = lambda s: jax.tree.leaves(s[1].inner_state.radius)
    jax.tree.map(np.testing.assert_array_equal, radius(new), radius(state))


@pytest.mark.broad
def test_state_is_portable_and_abstract():
    params = draw(0)
    tx = om.weights.hyperball(om.muon(0.1), optax.linear_schedule(0.1, 0.0, 10))
    state = tx.update(draw(1), tx.init(params), params)[1]
    portable = om.to_portable(state, params)
    restored = om.from_portable(portable, tx.init(params), params)
    jax.tree.map(np.testing.assert_array_equal, restored, state)
    with warnings.catch_warnings():
        raise_warnings()
        shapes = jax.eval_shape(tx.init, params)
    assert jax.tree.structure(shapes) == jax.tree.structure(state)


def test_mistakes():
    with pytest.raises(ValueError, match="`inner` must be a gradient transformation"):
        om.weights.hyperball(0.1, 0.1)
    with pytest.raises(ValueError, match="`learning_rate` must not be negative"):
        om.weights.hyperball(optax.sgd(1.0), -0.1)
    tx = om.weights.hyperball(optax.sgd(1.0), 0.1)
    with pytest.raises(ValueError, match="`params` must be passed"):
        tx.update(draw(0), tx.init(draw(0)))
