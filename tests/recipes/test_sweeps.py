"""`jax.vmap` over learning rates and seeds trains what separate runs train."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _registry import TABLE, small

import optax_matrix as om

SHAPES = {"kernel": (3, 4), "layers": (2, 4, 3), "bias": (4,), "frozen": (2, 3)}
RATES, SEEDS = np.float32([0.01, 0.1]), jnp.array([3, 8])


def draw(key):
    keys = jax.random.split(key, len(SHAPES))
    pairs = zip(keys, SHAPES.items(), strict=True)
    return {name: jax.random.normal(k, shape) for k, (name, shape) in pairs}


def trained(make, rate, seed, steps=3):
    """Parameters after a few steps on noise, from `init` on."""
    start, *noises = map(draw, jax.random.split(jax.random.key(seed), steps + 1))
    tx = make(rate)
    params, state = start, tx.init(start)
    for noise in noises:
        grads = jax.tree.map(lambda w, g: 0.1 * w + g, params, noise)
        updates, state = tx.update(grads, state, params)
        params = optax.apply_updates(params, updates)
    return params


def check(make):
    run = lambda rate, seed: trained(make, rate, seed)
    together = jax.jit(jax.vmap(run))(RATES, SEEDS)
    one = jax.jit(run)
    for i, (rate, seed) in enumerate(zip(RATES, SEEDS, strict=True)):
        alone = one(rate, seed)
        for name, x in alone.items():
            np.testing.assert_allclose(
                together[name][i], x, rtol=2e-3, atol=2e-4, err_msg=name
            )
    assert not np.allclose(together["kernel"][0], together["kernel"][1])
    return together


@pytest.mark.filterwarnings("ignore:These parameters are read without")
@pytest.mark.broad
@pytest.mark.parametrize(
    "name",
    [n if n == "muon" else pytest.param(n, marks=pytest.mark.slow) for n in TABLE],
)
def test_a_sweep_is_its_runs(name):
    """With a schedule, a decay mask and a frozen leaf."""

    def make(rate):
        parts = {
            "on": small(name)(
                optax.linear_schedule(rate, 0.0, 10),
                weight_decay=0.1,
                weight_decay_mask=lambda p: jax.tree.map(lambda x: x.ndim > 1, p),
            ),
            "off": optax.set_to_zero(),
        }
        labels = {k: "off" if k == "frozen" else "on" for k in SHAPES}
        return optax.partition(parts, labels)

    together = check(make)
    starts = [
        draw(jax.random.split(jax.random.key(seed), 4)[0])["frozen"] for seed in SEEDS
    ]
    np.testing.assert_array_equal(together["frozen"], jnp.stack(starts))


@pytest.mark.slow
def test_injected_hyperparameters_and_hyperball():
    check(lambda rate: om.inject_hyperparams(om.muon)(rate, b1=1 - rate))
    check(lambda rate: om.weights.hyperball(om.muon(0.1), rate))
