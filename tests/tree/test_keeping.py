"""Blocks that keep state at once, so that a large array is not written twice."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import optax_matrix as om
from optax_matrix._surroundings import within
from optax_matrix._surroundings.keeping import kept, movable

SIDE = 6
PARAMS = {name: {"kernel": jnp.ones((SIDE, SIDE))} for name in ("bad", "good")}
GRADS = {
    "bad": {"kernel": jnp.eye(SIDE).at[1, 2].set(jnp.nan)},
    "good": {"kernel": jnp.eye(SIDE)},
}
STACK = (2, SIDE, SIDE)


def test_a_block_may_ask_which_matrices_keep_their_state():
    old, new = {"a": jnp.zeros(STACK)}, {"a": jnp.ones(STACK)}
    assert kept(new, old) is not old
    np.testing.assert_array_equal(kept(new, old)["a"], 1)
    bad = jnp.array([True, False])
    with within(keeps=[{"a": bad}]):
        np.testing.assert_array_equal(kept(new, old)["a"][:, 0, 0], [0, 1])
        due = movable({"a": jnp.ones(2, bool), "b": jnp.ones(2, bool)})
    assert due["a"].tolist() == [False, True]
    assert due["b"].tolist() == [True, True]  # A stack of which nothing is known.


def test_state_that_is_not_that_of_the_step_before_is_put_back_at_the_end():
    def build(layout):
        del layout
        init = lambda params: {"x": jax.tree.map(jnp.zeros_like, params)}

        def update(updates, state, params=None):
            del params
            moved = jax.tree.map(lambda x: x + 5, state["x"])  # As a transport would.
            new = jax.tree.map(lambda x, g: x + g, moved, updates)
            return updates, {"x": kept(new, moved)}

        return optax.GradientTransformation(init, update)

    tx = om.on_matrices(build)
    state = tx.init(PARAMS)
    new: Any
    _, new = tx.update(GRADS, state, PARAMS)
    (x,) = new.inner_state["x"].values()
    np.testing.assert_array_equal(x[0], 0)
    np.testing.assert_array_equal(x[1], 5 + jnp.eye(SIDE))


def selects(jaxpr):
    """Number of stacks of square matrices whose entries a program chooses."""
    number = 0
    for equation in jaxpr.eqns:
        stack = equation.outvars[0].aval.shape == STACK if equation.outvars else False
        number += stack and equation.primitive.name == "select_n"
        for inner in jax.tree.leaves(list(equation.params.values())):
            if hasattr(inner, "jaxpr"):
                number += selects(inner.jaxpr)
    return number


def selects_of(name, **options):
    tx = getattr(om, name)(1e-2, **options)
    state = tx.init(PARAMS)
    return selects(jax.make_jaxpr(tx.update)(GRADS, state, PARAMS).jaxpr)


@pytest.mark.parametrize("name", ["soap", "shampoo"])
def test_what_keeps_its_state_is_chosen_once(name):
    """The policy "zero" chooses nothing, and the others each array of state once."""
    options = {"update_interval": 3, "zero_gradient": "follow"}
    more = selects_of(name, **options) - selects_of(name, nonfinite="zero", **options)
    tx = getattr(om, name)(1e-2, **options)
    arrays = jax.tree.leaves(tx.init(PARAMS).inner_state)
    large = sum(x.shape == STACK for x in arrays)
    renewed = 2  # Rotations or roots: those that are due leave out what keeps them.
    update = 1
    assert more == large - renewed + update
