"""Blocks that keep state at once, so that a large array is not written twice."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _registry import RECIPES

import optax_matrix as om
from optax_matrix._surroundings import within
from optax_matrix._surroundings.keeping import kept, movable
from optax_matrix.transforms.turns import renewed, select

CORE = ("soap", "kl_soap", "galore", "aro")
EACH = [
    name if name in CORE else pytest.param(name, marks=pytest.mark.slow)
    for name in RECIPES
]
# These read an array; what is element-wise is computed once more where it is used.
READERS = {
    "concatenate",
    "cond",
    "custom_jvp_call",
    "dot_general",
    "transpose",
    "while",
}
SIDE = 6
PARAMS = {
    name: {"kernel": np.ones((SIDE, SIDE), np.float32)} for name in ("bad", "good")
}
EYE = np.eye(SIDE, dtype=np.float32)
BAD = EYE.copy()
BAD[1, 2] = np.nan
GRADS = {"bad": {"kernel": BAD}, "good": {"kernel": EYE}}
STACK = (2, SIDE, SIDE)


@pytest.mark.broad
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


@pytest.mark.parametrize("if_any", [True, False])
def test_a_renewal_leaves_out_what_is_not_due_or_keeps_its_state(if_any):
    old, pairs = {"a": jnp.zeros((3, 2, 2)), "b": jnp.zeros((1, 2, 2))}, []
    due = {"a": jnp.array([True, True, False]), "b": jnp.array([True])}
    renew = lambda due, old: jax.tree.map(lambda d, x: select(d, 1, x), due, old)
    with within(keeps=[{"a": jnp.array([True, False, False])}], kept=pairs):
        new = renewed(renew, due, old, if_any=if_any)
    np.testing.assert_array_equal(new["a"][:, 0, 0], [0, 1, 0])
    np.testing.assert_array_equal(new["b"], 1)
    # The end of the step finds it done.
    assert [(id(x), id(y)) for x, y in pairs] == [(id(new[n]), id(old[n])) for n in old]


@pytest.mark.broad
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
    state = jax.eval_shape(tx.init, PARAMS)
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


def flat(jaxpr, known, found):
    """The equations of a program with their operands, those of its calls in place."""
    for equation in jaxpr.eqns:
        operands = [known.get(id(x), x) for x in equation.invars]
        if equation.primitive.name in ("jit", "pjit"):
            inner = equation.params["jaxpr"].jaxpr
            values = {id(x): y for x, y in zip(inner.invars, operands, strict=True)}
            flat(inner, values, found)
            results = [values.get(id(x), x) for x in inner.outvars]
        else:
            results = [(len(found), i) for i in range(len(equation.outvars))]
            found.append((equation, operands))
        known |= {id(x): y for x, y in zip(equation.outvars, results, strict=True)}


def written_twice(tx):
    """State of matrices that a step uses before it is put back where it is kept."""
    state = tx.init(PARAMS)
    make = jax.make_jaxpr(tx.update, return_shape=True)
    program, (_, shapes) = make(GRADS, state, PARAMS)
    known, found = {}, []
    flat(program.jaxpr, known, found)
    leaves = jax.tree.leaves_with_path(shapes)
    paths = [jax.tree_util.keystr(path) for path, _ in leaves]
    results = program.jaxpr.outvars[-len(paths) :]
    twice = []
    for path, result in zip(paths, results, strict=True):
        place = known.get(id(result))
        if place is None or result.aval.ndim < 3 or result.aval.size < 2 * SIDE:
            continue
        equation, operands = found[place[0]]
        if equation.primitive.name != "select_n":
            continue
        news = [x for x in operands[1:] if isinstance(x, tuple)]
        users = [e for e, xs in found if any(x in news for x in xs)]
        others = {e.primitive.name for e in users if e is not equation}
        if others & READERS:
            twice.append(path)
    return twice


@pytest.mark.parametrize("name", EACH)
def test_no_state_is_written_twice(name):
    """What is used elsewhere, too, exists beside the state that matrices keep."""
    assert written_twice(RECIPES[name](1e-2, zero_gradient="follow")) == []


@pytest.mark.parametrize("interval", [1, 100])
def test_spo_leaves_the_frames_alone_that_keep_their_state(interval):
    """Neither a merge nor an edit of the weights changes them."""
    tx = om.spo(optax.scale_by_adam(), block=3, merge_interval=interval)
    noted = []

    def step(w, state):
        pairs = []
        with within(keeps=[{"a": jnp.array([True, False])}], kept=pairs):
            _, new = tx.update({"a": jnp.ones(STACK)}, state, {"a": 2 * w["a"]})
        found = {(id(x), id(y)) for x, y in pairs}
        held = lambda s: jax.tree.leaves((s.frame, s.q, s.inner_state.mu))
        noted.extend(
            (id(x), id(y)) in found
            for x, y in zip(*map(held, (new, state)), strict=True)
        )
        return new

    w = {"a": np.stack([EYE, EYE])}
    state = jax.jit(tx.init)(w)
    after: Any = jax.jit(step)(w, state)
    assert noted == [True] * 5
    jax.tree.map(lambda x: np.testing.assert_array_equal(x[0], 0), after.inner_state.mu)
    new, old = (np.asarray(s.frame["a"]) for s in (after, state))
    np.testing.assert_array_equal(new[0], old[0])
    assert np.abs(new[1] - old[1]).max() > 0.5
