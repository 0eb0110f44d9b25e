"""Models in half precision get the updates of float32 models: every recipe."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _registry import RECIPES
from _tiers import DAILY

STEPS, SHAPE = 20, (12, 20)
HALVES = (jnp.bfloat16, jnp.float16)
STARTS = {"zero": 0.0, "normal": 0.2}
# Relative distance of 20 updates on average; 0.2 to 0.8% were measured for most recipes
# in bfloat16, whose numbers are 0.4% apart. Signs jump, as entries of a first second
# moment do, and so do turns of ARO that depend on them.
DISTANCE, OF_ONE = 0.03, 0.6
LARGER = {
    **dict.fromkeys(("eigen_sign", "splus", "aro-adam", "aro-sign"), 0.5),
    **dict.fromkeys(("swan", "oft"), 0.1),
}
# They turn weights; zeros stay zeros.
MULTIPLIES = {"poet", "poet-full", "oft", "muonh"}

cases = [
    pytest.param(name, marks=pytest.mark.broad if name in DAILY else pytest.mark.slow)
    for name in RECIPES
]


def inputs(scale):
    """Weights and gradients that bfloat16 holds exactly."""
    rng = np.random.default_rng(3)
    weights, mean = scale * rng.standard_normal(SHAPE), rng.standard_normal(SHAPE)
    grads = 0.1 * rng.standard_normal((STEPS, *SHAPE)) + 0.05 * mean
    return (jnp.asarray(x, jnp.bfloat16) for x in (weights, grads))


def updates_of(tx, weights, grads):
    params = {"kernel": weights}

    def body(state, g):
        updates, state = tx.update({"kernel": g}, state, params)
        return state, updates["kernel"]

    return jax.lax.scan(body, tx.init(params), grads)[1]


def sizes(x):
    return np.linalg.norm(x, axis=(-2, -1))


@pytest.mark.slow
@pytest.mark.parametrize("name", cases)
def test_updates_follow_those_of_float32(name):
    tx = RECIPES[name](0.01, weight_decay=0.0)
    starts = {k: v for k, v in STARTS.items() if v or name not in MULTIPLIES}

    @jax.jit
    def run():
        dtypes = (jnp.float32, *HALVES)
        streams = [(*inputs(scale),) for scale in starts.values()]
        return [
            [updates_of(tx, w.astype(t), g.astype(t)) for t in dtypes]
            for w, g in streams
        ]

    for of_start in run():
        want, *halves = (np.asarray(x, np.float64) for x in of_start)
        for got in halves:
            distance = sizes(got - want) / sizes(want)
            assert distance.mean() < LARGER.get(name, DISTANCE), distance
            assert distance.max() < OF_ONE, distance
            assert np.abs(got).max() < 1.1 * np.abs(want).max()


@pytest.mark.broad
def test_soap_in_bfloat16_does_not_destroy_a_model():
    """The right basis of a wide gradient has columns in which there is no gradient."""
    tx = RECIPES["soap"](1e-2, weight_decay=0.0)
    rng = np.random.default_rng(0)
    g = {"kernel": jnp.asarray(rng.standard_normal((16, 32)), jnp.bfloat16)}
    params = jax.tree.map(jnp.zeros_like, g)
    updates, _ = jax.jit(tx.update)(g, tx.init(params), params)
    assert float(jnp.abs(updates["kernel"]).max()) < 0.05


@pytest.mark.parametrize("other", [None, optax.adamw(1e-2)], ids=["ours", "optax's"])
@pytest.mark.parametrize("name", cases)
def test_a_scan_carries_bfloat16_weights_under_float32_gradients(name, other):
    """Of all leaves; optax's AdamW alone would make its moments float32."""
    tx = RECIPES[name](1e-2, other=other)
    params = {
        "kernel": jnp.ones(SHAPE, jnp.bfloat16),
        "bias": jnp.ones(8, jnp.bfloat16),
    }
    grads = jax.tree.map(lambda x: x.astype(jnp.float32), params)

    def body(carry, _):
        params, state = carry
        updates, state = tx.update(grads, state, params)
        return (optax.apply_updates(params, updates), state), None

    run = lambda: jax.lax.scan(body, (params, tx.init(params)), None, length=2)
    (after, _), _ = jax.eval_shape(run)
    assert after["bias"].dtype == jnp.bfloat16
