"""Recipes by name, with options from a configuration file."""

import inspect
import json

import jax
import pytest
from _registry import SMALL, TABLE, tree
from _walks import walk

import optax_matrix as om

PARAMS = jax.eval_shape(lambda: tree(0))
PLAIN = (bool, int, float, str, tuple)


def of_file(options):
    """Options as a file gives them back: tuples are lists."""
    return json.loads(json.dumps(options))


def defaults(recipe):
    """The arguments of a recipe that a file can hold, at their defaults."""
    given = inspect.signature(recipe).parameters.values()
    return {p.name: p.default for p in given if isinstance(p.default, PLAIN)}


@walk("name", TABLE)
def test_every_recipe_is_made_from_what_a_file_holds(name):
    options = {**defaults(TABLE[name]), **SMALL.get(name, {}), "mu_dtype": "bfloat16"}
    state = lambda tx: jax.eval_shape(tx.init, PARAMS)
    made = om.create(**of_file({"name": name, "learning_rate": 1, **options}))
    got, want = state(made), state(TABLE[name](1.0, **options))
    assert jax.tree.structure(got) == jax.tree.structure(want)
    assert jax.tree.leaves(got) == jax.tree.leaves(want)


def test_all_recipes_have_a_group():
    others = {n for n in om.recipes.__all__ if not n.startswith("scale_by_")}
    assert others == {*TABLE, "create"}


def test_mistakes_are_told():
    with pytest.raises(ValueError, match=r"got 'MuonEQ'; did you mean 'muoneq', "):
        om.create("MuonEQ", 1e-3)
    with pytest.raises(ValueError, match=r"take one of 'adamuon', .* or 'swan'\."):
        om.create("xyz", 1e-3)
    with pytest.raises(ValueError, match="`name` must be the name of a recipe, got 3;"):
        om.create(3, 1e-3)
    with pytest.raises(ValueError, match="`learning_rate` must be a number and must"):
        om.create("muon", "1e-3")
    with pytest.raises(TypeError, match="here `beta1` is called `b1`"):
        om.create("muoneq", 1e-3, beta1=0.9)
