"""What `init` has decided about leaves, `update` does not ask again."""

import sys
from pathlib import Path
from typing import Any

import flax.linen as nn
import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _matrices import gaussian
from _registry import RECIPES

import optax_matrix as om

ROOT = Path(om.__file__).parent
# They read names, shapes, layers and boxes of leaves.
DECIDING = {"_infer", "_layers", "_scopes", "_siblings", "_words", "boxes"}
DECIDING |= {"decisions", "leaves", "names", "rules", "vectors"}
FILES = {str(ROOT / "matrices" / f"{name}.py"): name for name in DECIDING}
NAMES = ("muon", "scion")  # Each has its own optimizer for other leaves.
PARAMS = {
    "up": {"kernel": jax.ShapeDtypeStruct((4, 6), jnp.float32)},
    "bias": jax.ShapeDtypeStruct((6,), jnp.float32),
}


def deciding(f):
    """The files among them that a call enters."""
    found = set()

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_filename in FILES:
            found.add(FILES[frame.f_code.co_filename])

    sys.setprofile(note)
    try:
        f()
    finally:
        sys.setprofile(None)
    return found


def traced(tx, params=PARAMS):
    """A function that traces one update."""
    state = jax.eval_shape(tx.init, params)
    return lambda: jax.eval_shape(tx.update, params, state, params)


def again(name):
    return deciding(traced(RECIPES[name](0.1, weight_decay=0.1)))


def test_update_decides_nothing_again():
    found = {name: again(name) for name in NAMES}
    assert not any(found.values()), found


def test_nor_does_a_monitor():
    tx = om.diagnostics.monitor(om.muon(0.1), ("update_rms", "update_cosine"))
    assert deciding(traced(tx)) == set()


@pytest.mark.slow
def test_no_recipe_decides_again():
    found = {name: again(name) for name in RECIPES}
    assert not any(found.values()), found


def test_where_init_never_ran_the_first_trace_decides():
    state = jax.eval_shape(om.muon(0.1).init, PARAMS)
    tx = om.muon(0.1)
    step = lambda: jax.eval_shape(tx.update, PARAMS, state, PARAMS)
    assert deciding(step) >= {"_siblings", "decisions", "vectors"}
    assert deciding(step) == set()


# The same leaf is a stack of vectors beside stacks of kernels, and else none.
STACKED = {
    "layers": {
        "mix": np.full((4, 8), 2.0, np.float32),
        "up": {"kernel": np.ones((4, 8, 16), np.float32)},
        "down": {"kernel": np.ones((4, 16, 8), np.float32)},
    }
}
PLAIN = {
    "layers": {
        "mix": np.full((4, 8), 2.0, np.float32),
        "up": {"kernel": np.ones((8, 16), np.float32)},
        "down": {"kernel": np.ones((16, 8), np.float32)},
    }
}


def step_of_mix(tx, params, state=None):
    """What a step adds to the leaf whose gradient is zero: its decay."""
    grads = jax.tree.map(np.zeros_like, params)
    state = tx.init(params) if state is None else state
    new: Any
    new, _ = tx.update(grads, state, params)
    return float(new["layers"]["mix"][0, 0])


def make():
    return om.muon(0.1, weight_decay=0.5, dimension_numbers=lambda _: None)


@pytest.mark.broad
def test_one_transformation_on_several_trees():
    tx = make()
    for tree, decays in ((STACKED, False), (PLAIN, True), (STACKED, False)):
        assert (step_of_mix(tx, tree) < 0) is decays


@pytest.mark.programs(60, "users run such steps without jit, too")
def test_after_a_restart_decisions_are_those_of_init():
    """Nothing is known of the tree but its state."""
    for tree, decays in ((STACKED, False), (PLAIN, True)):
        assert (step_of_mix(make(), tree, make().init(tree)) < 0) is decays


def test_frozen_leaves_still_say_what_a_leaf_is():
    """A tree without gradients for its kernels has the same vectors."""
    grads = {"layers": {"mix": np.zeros((4, 8)), "up": None, "down": None}}
    trained = {"layers": {**grads["layers"], "mix": STACKED["layers"]["mix"]}}
    new: Any
    new, _ = make().update(grads, make().init(trained), STACKED)
    np.testing.assert_array_equal(new["layers"]["mix"], 0)


@pytest.mark.broad
def test_states_in_boxes_and_without_take_turns():
    box = lambda x: nn.Partitioned(x, names=("in", "out"))
    kernel = np.ones((4, 6), np.float32)
    boxed: Any
    bare: Any
    boxed, bare = ({"up": {"kernel": x}} for x in (box(kernel), kernel))
    tx = om.muon(0.1)
    structures = []
    for tree in (bare, boxed, bare, boxed):
        state = tx.init(tree)
        structures.append(jax.tree.structure(state))
        new, after = tx.update(tree, state, tree)
        assert jax.tree.structure(after) == structures[-1]
        fresh, _ = om.muon(0.1).update(tree, state, tree)
        jax.tree.map(np.testing.assert_array_equal, new, fresh)
    assert structures[0] == structures[2] != structures[1] == structures[3]


@pytest.mark.broad
def test_masked_variables_are_emptied_after_a_tree_without_variables():
    boxed = nnx.state(nnx.Linear(4, 6, rngs=nnx.Rngs(0)), nnx.Param)
    bare = nnx.to_pure_dict(boxed)
    tx = om.muon(0.1, other=optax.adam(0.1))
    tx.init(bare)
    state = tx.init(boxed)
    fresh = om.muon(0.1, other=optax.adam(0.1)).init(boxed)
    assert jax.tree.structure(state) == jax.tree.structure(fresh)
    new, _ = tx.update(boxed, state, boxed)
    assert jax.tree.structure(new) == jax.tree.structure(boxed)


@pytest.mark.broad
@pytest.mark.parametrize("method", [om.scion, om.muonh])
def test_a_step_without_params_after_a_restart_decides_for_itself_alone(method):
    """Without them the ends are those of a part; later steps know the whole tree."""
    shapes = {"embed/embedding": (8, 4), "up/kernel": (4, 8), "lm_head/kernel": (4, 8)}
    params = {path: gaussian(*s, seed=len(path)) for path, s in shapes.items()}
    params = jax.tree.map(np.float32, params)
    rule = om.matrices.by_path(include="lm_head")
    make = lambda: method(1.0, dimension_numbers=rule, weight_decay=0.0)
    tx, again = make(), make()
    state = tx.init(params)
    want, _ = tx.update(params, state, params)
    if method is om.scion:  # MuonH needs the parameters.
        again.update(params, state)
    got, _ = again.update(params, state, params)
    jax.tree.map(np.testing.assert_array_equal, got, want)
