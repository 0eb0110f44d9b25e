"""Newton-Muon on second moments that Linen and NNX collect, against NumPy."""

import jax
import numpy as np
import optax
import pytest
from _steps import first_update
from flax import linen as nn, nnx

from examples import second_moments as example
from examples.quickstart_linen import Autoencoder


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.broad
def test_newton_muon_is_its_formula():
    shape, steps = {"up": {"kernel": (5, 4)}, "down": {"kernel": (5, 4)}}, 3
    tree = lambda seed: {
        name: {"kernel": draw(5, 4, seed=seed + i)} for i, name in enumerate(shape)
    }
    spd = lambda z: (z.T @ z / len(z)).astype(np.float32)
    params = tree(0)
    tx = example.newton_muon(1.0, b1=0.9, decay=0.8, eps=0.2)
    state, update = jax.jit(tx.init)(params), jax.jit(tx.update)
    held, moment = {}, {}
    for step in range(steps):
        grads = tree(10 * step + 1)
        inputs = {
            n: {"kernel": spd(draw(9, 5, seed=step + 50 + len(n)))} for n in shape
        }
        updates, state = update(grads, state, params, second_moments=inputs)
        for name in shape:
            k, g = (np.float64(t[name]["kernel"]) for t in (inputs, grads))
            held[name] = k if step == 0 else 0.8 * held[name] + 0.2 * k
            top = np.linalg.eigvalsh(held[name]).max()
            g = g.T @ np.linalg.inv(held[name] + 0.2 * top * np.eye(5))
            moment[name] = 0.9 * moment.get(name, 0) + 0.1 * g
            got = -np.float64(updates[name]["kernel"]).T
            # The iteration brings singular values near one, and keeps the vectors.
            u, s, v = np.linalg.svd(got)
            np.testing.assert_allclose(s, 1, atol=0.35)
            wanted_u, _, wanted_v = np.linalg.svd(moment[name])
            polar = lambda u, v: u @ v[:4]
            close = polar(u, v), polar(wanted_u, wanted_v)
            np.testing.assert_allclose(*close, atol=2e-3)


@pytest.mark.broad
def test_both_frameworks_collect_the_inputs():
    x, model = draw(7, 32), Autoencoder()
    params = model.init(jax.random.key(0), x)
    with nn.intercept_methods(example.collect):
        _, found = model.apply(params, x, mutable=["moments"])
    moments = found["moments"]
    assert set(moments) == set(params["params"])
    for name, layer in params["params"].items():
        inputs = len(layer["kernel"])
        assert moments[name]["kernel"].shape == (inputs, inputs)
    first = next(n for n, x in params["params"].items() if len(x["kernel"]) == 32)
    np.testing.assert_allclose(
        moments[first]["kernel"], x.T @ x / 7, rtol=1e-4, atol=1e-5
    )
    layer = example.Linear(32, 4, rngs=nnx.Rngs(0))
    layer(x)
    np.testing.assert_allclose(
        layer.moment.get_value(), x.T @ x / 7, rtol=1e-4, atol=1e-5
    )


@pytest.mark.slow
def test_training_in_both_frameworks():
    for losses in example.main(steps=20).values():
        assert losses[-1] < 0.7 * losses[0]


@pytest.mark.broad
def test_a_step_without_statistics_says_what_to_pass():
    params = {"up": {"kernel": draw(5, 4)}}
    tx = optax.chain(optax.identity(), example.newton_muon(0.1))
    with pytest.raises(ValueError, match="`second_moments` must be passed to `update`"):
        first_update(tx, params, params)
