"""The state of a square matrix says which side rotates or is projected."""

import inspect

import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _registry import TABLE, small

import optax_matrix as om
from optax_matrix.checkpoint import check_restored, from_portable, to_portable

# The states alone are used.
pytestmark = pytest.mark.usefixtures("unprobed")

PARAMS = {"kernel": np.arange(16, dtype=np.float32).reshape(4, 4)}
SIDED = {
    name: word
    for name, recipe in TABLE.items()
    for word in ("side", "orientation")
    if word in inspect.signature(recipe).parameters
}


def made(name, side):
    tx = small(name, **{SIDED[name]: side})(0.1)
    return tx, jax.jit(tx.init)(PARAMS)


def updated(tx, state):
    return jax.eval_shape(tx.update, PARAMS, state, PARAMS)[1]


def test_which_recipes_have_a_side():
    known = {"soap", "shampoo", "mousse", "kl_shampoo", "galore", "alice", "sumo"}
    assert known | {"ldadam", "aro", "eigen_adam"} <= set(SIDED)


@pytest.mark.broad
@pytest.mark.daily("soap", "shampoo", "galore", "ldadam", "aro")
@pytest.mark.parametrize("name", SIDED)
def test_the_state_of_another_side_is_refused(name):
    (old, state), (new, fresh) = made(name, "in"), made(name, "out")
    arrays = lambda s: [(x.shape, x.dtype) for x in jax.tree.leaves(s)]
    assert arrays(state) == arrays(fresh)
    portable, words = to_portable(state, PARAMS), "restore `side` or `orientation`"
    with pytest.raises(ValueError, match=words):
        from_portable(portable, fresh, PARAMS, missing="init", unused="drop")
    with pytest.raises(ValueError, match=words):
        updated(new, state)
    data = flax.serialization.to_bytes(state)
    with pytest.raises(ValueError, match="out"):
        flax.serialization.from_bytes(fresh, data)
    leaves, structure = jax.tree.leaves(state), jax.tree.structure(fresh)
    by_position = jax.tree.unflatten(structure, leaves)
    for call in (check_restored, lambda s: new.update(PARAMS, s, PARAMS)):
        with pytest.raises(ValueError, match=r"`state` .*that of side out .*position"):
            call(by_position)
    # That of its own is taken; on purpose, the other one is, too.
    assert jax.tree.structure(updated(old, state)) == jax.tree.structure(state)
    filled = from_portable(portable, old.init(PARAMS), PARAMS)
    jax.tree.map(np.testing.assert_array_equal, filled, state)
    check_restored(filled)
    some = {key: x for key, x in portable.items() if not key.startswith("sides/")}
    from_portable(some, fresh, PARAMS)


@pytest.mark.broad
@pytest.mark.daily("soap", "galore")
@pytest.mark.parametrize("name", [name for name in SIDED if SIDED[name] == "side"])
def test_a_side_by_another_name_is_the_same(name):
    """The shorter side of a square matrix are its rows."""
    (_, state), (new, fresh) = made(name, "short"), made(name, "out")
    assert jax.tree.structure(state) == jax.tree.structure(fresh)
    updated(new, state)
    from_portable(to_portable(state, PARAMS), fresh, PARAMS)


@pytest.mark.parametrize(
    "sides", [("in", "both", "short"), ("in", "both", "in"), ("out", "both", "in")]
)
def test_several_blocks_keep_their_order(sides):
    def make(sides):
        rotations = (om.rotate(optax.scale_by_sign(), side=s) for s in sides)
        return om.on_matrices(optax.chain(*rotations))

    state = jax.jit(make(("in", "both", "out")).init)(PARAMS)
    assert [list(x) for x in state.sides.values()] == [["in+both+out"]]
    if sides == ("in", "both", "short"):
        updated(make(sides), state)
        return
    with pytest.raises(ValueError, match=r"it is of 'in\+both\+out', and blocks"):
        updated(make(sides), state)


@pytest.mark.broad
@pytest.mark.daily("soap", "galore")
@pytest.mark.parametrize("name", SIDED)
def test_neither_placement_nor_bound_changes_it(name):
    params = {f"layers_{i}": {"kernel": jnp.ones((4, 4))} for i in range(2)}
    sides = []
    for options in ({}, {"max_batch": 1}, {"placement": om.quantized(min_size=1)}):
        tx = small(name, **{SIDED[name]: "in"}, **options)(0.1)
        state = tx.init(params)
        assert state.sides.keys() == state.manifest.keys()
        portable = to_portable(state, params)
        sides.append([key for key in portable if key.startswith("sides/")])
    assert sides == [[f"sides/in/layers_{i}/kernel" for i in range(2)]] * 3


def test_sides_are_not_compared_with_those_of_another_method():
    """Whoever leaves out the method has carried the state over on purpose."""
    (_, state), (_, fresh) = made("soap", "both"), made("shampoo", "out")
    portable, loose = to_portable(state, PARAMS), {"missing": "init", "unused": "drop"}
    with pytest.raises(ValueError, match="a state of shampoo, got one of soap"):
        from_portable(portable, fresh, PARAMS, **loose)
    carried = {key: x for key, x in portable.items() if not key.startswith("method/")}
    check_restored(from_portable(carried, fresh, PARAMS, **loose))
    with pytest.raises(ValueError, match=r"of no use, (?!.*sides/)"):
        from_portable(carried, fresh, PARAMS, missing="init")


def test_the_message_names_all_sides():
    (_, state), (_, fresh) = made("soap", "in"), made("soap", "out")
    with pytest.raises(ValueError, match=r"leave out the entries sides/\.\.\.$"):
        from_portable(to_portable(state, PARAMS), fresh, PARAMS)


def test_other_axes_are_no_other_side():
    """The shorter side of a turned matrix is the other one."""
    params, states = {"kernel": np.ones((4, 6), np.float32)}, []
    for axes in ((0, 1), (1, 0)):
        spec = om.MatrixDimensionNumbers(*axes)
        tx = small("galore", side="short", dimension_numbers={"kernel": spec})(0.1)
        states.append(jax.jit(tx.init)(params))
    with pytest.raises(ValueError, match="restore the `dimension_numbers`"):
        from_portable(to_portable(states[0], params), states[1], params)
