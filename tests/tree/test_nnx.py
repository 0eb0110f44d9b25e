"""Recipes in optax's wrappers, in an optimizer of NNX.

NNX passes variables to `init` and bare arrays to `update`, also where the wrapper has
masked a parameter.
"""

import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _registry import RECIPES
from _tiers import tiered

import optax_matrix as om


class Model(nnx.Module):
    """Two layers, of which one may be frozen."""

    def __init__(self):
        rngs = nnx.Rngs(0)
        self.a = nnx.Linear(8, 12, rngs=rngs)
        self.b = nnx.Linear(12, 8, rngs=rngs)

    def __call__(self, x):
        return self.b(jnp.tanh(self.a(x)))


def labels(params):
    of = lambda keys, _: "train" if "'b'" in str(keys) else "freeze"
    return jax.tree_util.tree_map_with_path(of, params)


def mask(params):
    return jax.tree.map(lambda label: label == "train", labels(params))


WRAPPERS = {
    "partition": lambda tx: optax.partition(
        {"train": tx, "freeze": optax.set_to_zero()}, labels
    ),
    "masked": lambda tx: optax.masked(tx, mask),
    "by label": lambda tx: optax.partition(
        {"matrix": tx, "other": optax.sgd(0.1)}, om.matrices.label_params()
    ),
}


def trained(tx, steps=2):
    """The parameters before and after some steps."""
    model = Model()
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    before = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    before = jax.tree.map(jnp.copy, before)
    for _ in range(steps):
        loss = lambda m: jnp.mean((m(np.eye(8, dtype=np.float32)) - 1) ** 2)
        optimizer.update(model, nnx.grad(loss)(model))
    return before, nnx.to_pure_dict(nnx.state(model, nnx.Param))


@pytest.mark.daily("muon")
@pytest.mark.parametrize("name", tiered(RECIPES))
def test_every_recipe_trains_a_part_of_a_model(name):
    tx = WRAPPERS["partition"](RECIPES[name](0.1))
    shapes = nnx.eval_shape(lambda: trained(tx))
    same = lambda x, y: x.shape == y.shape
    assert jax.tree.all(jax.tree.map(same, *shapes))


@pytest.mark.daily("partition")
@pytest.mark.broad
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_wrappers_do_to_nnx_what_they_do_to_dicts(wrapper):
    tx = WRAPPERS[wrapper](om.muon(0.1))
    before, after = trained(tx)
    apply, static = nnx.split(Model())
    params, state = before, tx.init(before)
    for _ in range(2):

        def loss(params):
            nnx.replace_by_pure_dict(static, params)
            return jnp.mean((nnx.merge(apply, static)(jnp.eye(8)) - 1) ** 2)

        new, state = tx.update(jax.grad(loss)(params), state, params)
        if wrapper == "masked":  # It passes the gradients of all others on.
            assert new["a"]["kernel"].any()
        params = optax.apply_updates(params, new)
    close = lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)
    jax.tree.map(close, after, params)
    assert not np.array_equal(after["b"]["kernel"], before["b"]["kernel"])


QUANTIZED = {
    "alone": lambda: om.adamw_8bit(0.1, min_size=64),
    "any": lambda: om.quantization.quantize_state(optax.adamw(0.1), min_size=64),
    "beside": lambda: om.muon(
        0.1, placement=om.quantized(), other=om.adamw_8bit(0.1, min_size=8)
    ),
    "rounded at random": lambda: om.quantization.quantize_state(
        optax.adamw(0.1), min_size=64, seed=0
    ),
}


@pytest.mark.daily("beside")
@pytest.mark.broad
@pytest.mark.parametrize("name", QUANTIZED)
def test_eight_bit_moments(name):
    before, after = trained(QUANTIZED[name]())
    moved = jax.tree.map(lambda x, y: bool((x != y).all()), before, after)
    assert jax.tree.all(moved), moved
