"""Equinox's own training loop: the whole model is passed as `params`."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import optax_matrix as om

NUMBERS = om.matrices.by_path(numbers={"weight": om.MatrixDimensionNumbers(1, 0)})


class Model(eqx.Module):
    up: eqx.nn.Linear
    norm: eqx.nn.LayerNorm
    down: eqx.nn.Linear
    act: Callable
    depth: int

    def __init__(self, key):
        keys = jax.random.split(key)
        self.up = eqx.nn.Linear(8, 16, key=keys[0])
        self.norm = eqx.nn.LayerNorm(16)
        self.down = eqx.nn.Linear(16, 4, key=keys[1])
        self.act, self.depth = jax.nn.relu, 2

    def __call__(self, x):
        return self.down(self.norm(self.act(self.up(x))))


def trained(tx, passed):
    """Three steps as in Equinox's examples; ``passed(model)`` are the parameters."""
    model = Model(jax.random.key(0))
    state = tx.init(eqx.filter(model, eqx.is_inexact_array))

    @eqx.filter_jit
    def step(model, state, x):
        grads = eqx.filter_grad(lambda m: jnp.sum(jax.vmap(m)(x) ** 2))(model)
        updates, state = tx.update(grads, state, passed(model))
        return eqx.apply_updates(model, updates), state

    for seed in range(3):
        x = jax.random.normal(jax.random.key(seed), (4, 8))
        model, state = step(model, state, x)
    return eqx.filter(model, eqx.is_inexact_array)


@pytest.mark.broad
@pytest.mark.parametrize(
    "name",
    [
        "muon",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("aro", "racs", "soap")),
    ],
)
def test_the_whole_model_may_be_the_parameters(name):
    tx = getattr(om, name)(1e-2, dimension_numbers=NUMBERS, weight_decay=0.1)
    whole = trained(tx, lambda model: model)
    filtered = trained(tx, lambda model: eqx.filter(model, eqx.is_inexact_array))
    jax.tree.map(np.testing.assert_array_equal, whole, filtered)


def test_vectors_named_weight_are_no_matrices():
    params = eqx.filter(Model(jax.random.key(0)), eqx.is_inexact_array)
    text = str(om.describe(params, dimension_numbers=NUMBERS))
    line = next(line for line in text.splitlines() if "norm/weight" in line)
    assert "a vector" in line
    line = next(line for line in text.splitlines() if "up/weight" in line)
    assert "1x (16, 8)" in line


def test_an_unfiltered_model_is_refused_with_what_to_do():
    with pytest.raises(ValueError, match=r"'act'; .* eqx.filter\(model, eqx.is_inex"):
        om.muon(0.1).init(Model(jax.random.key(0)))


@pytest.mark.broad
def test_other_structures_are_still_refused():
    tx, params = om.muon(0.1), {"a": jnp.ones((2, 3)), "b": jnp.ones(3)}
    state = tx.init(params)
    with pytest.raises(ValueError, match=r"lack|structure|got None"):
        tx.update({"a": jnp.ones((2, 3)), "c": None}, state, params)
    chain = optax.chain(optax.clip_by_global_norm(1.0), tx)
    updates, _ = chain.update(
        {"a": jnp.ones((2, 3)), "b": None}, chain.init({**params, "b": None}), params
    )
    assert updates["b"] is None
