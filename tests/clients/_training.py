"""What several of these tests do: train for a few steps, and compare."""

import jax
import numpy as np
import optax
import pytest

# Two recipes that stand for all: one momentum, and state of another shape.
RECIPES = {"muoneq": {}, "aro": {"base": "adam"}}
NAMES = ["muoneq", pytest.param("aro", marks=pytest.mark.slow)]


def train(tx, params, loss, steps=3):
    """The parameters after a few steps of plain optax, and the loss before each."""

    @jax.jit
    def step(params, state):
        value, grads = jax.value_and_grad(loss)(params)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    state, losses = tx.init(params), []
    for _ in range(steps):
        params, state, value = step(params, state)
        losses.append(float(value))
    return params, losses


def update(tx, params, *streams):
    """The last of one update for each tree of gradients."""
    state, compiled = tx.init(params), jax.jit(tx.update)
    for grads in streams:
        updates, state = compiled(grads, state, params)
    return updates


def assert_close(got, want, rtol=1e-4, atol=1e-6):
    compare = lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)
    jax.tree.map(compare, got, want)


def assert_equal(got, want):
    jax.tree.map(np.testing.assert_array_equal, got, want)
