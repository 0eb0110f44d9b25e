"""A tree of parameters that is one array, as in a first line of a notebook."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _registry import RECIPES, TABLE

import optax_matrix as om

WEIGHT = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)

WRAPPED = {
    "hyperball": lambda: om.weights.hyperball(om.muon(0.02), learning_rate=0.01),
    "average_weights": lambda: om.average_weights(om.muoneq(0.01), 0.9),
    "stochastic_rounding": lambda: om.weights.stochastic_rounding(om.muoneq(0.01)),
    "quantized": lambda: om.muoneq(0.01, placement=om.quantized()),
    "adamw_8bit": lambda: om.adamw_8bit(0.01),
    "inject_hyperparams": lambda: om.inject_hyperparams(om.muoneq)(0.01),
    "masked": lambda: optax.masked(om.muoneq(0.01), True),
    "monitor": lambda: om.diagnostics.monitor(om.muoneq(0.01)),
    "mask": lambda: om.muoneq(0.01, weight_decay_mask=lambda p: True),  # noqa: ARG005
    "other": lambda: om.muoneq(0.01, other=optax.adamw(0.01)),
}


def shapes(tx, params):
    """The shapes of an update; its state keeps its structure."""
    state = jax.eval_shape(tx.init, params)
    updates, new = jax.eval_shape(tx.update, params, state, params)
    assert jax.tree.structure(new) == jax.tree.structure(state)
    return jax.tree.map(jnp.shape, updates)


@pytest.mark.broad
@pytest.mark.filterwarnings("ignore:No parameter is in a matrix")
@pytest.mark.parametrize("shape", [(6, 4), (4,)], ids=["matrix", "vector"])
def test_every_method_takes_one_array(shape):
    failed = {}
    array = jax.ShapeDtypeStruct(shape, jnp.float32)
    for name, make in {
        **WRAPPED,
        **{n: lambda n=n: RECIPES[n](0.01) for n in TABLE},
    }.items():
        try:
            assert shapes(make(), array) == shape
        except Exception as error:  # Of any kind: all failures are shown together.
            failed[name] = repr(error)
    assert not failed


@pytest.mark.broad
def test_one_array_gets_the_update_of_a_kernel():
    tx = om.muoneq(0.01)
    update = jax.jit(lambda g: tx.update(g, tx.init(g), g)[0])
    bare, named = update(WEIGHT), update({"kernel": WEIGHT})
    np.testing.assert_array_equal(bare, named["kernel"])


def test_the_state_of_one_array_is_portable():
    tx = om.muoneq(0.01)
    init = jax.jit(tx.init)
    state = init(WEIGHT)
    portable = om.to_portable(state, WEIGHT)
    restored = om.from_portable(portable, init(WEIGHT), WEIGHT)
    jax.tree.map(np.testing.assert_array_equal, restored, state)
