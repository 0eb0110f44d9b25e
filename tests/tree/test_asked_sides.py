"""Stacks are split by residual side only for transformations that read it."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _owned import normal

import optax_matrix as om
from optax_matrix.tree import _wrapper

SHAPES = {f"layers/{i}/{name}/kernel": (8, 8) for i in range(2) for name in "qkvo"}
PARAMS = {path: jax.ShapeDtypeStruct(s, jnp.float32) for path, s in SHAPES.items()}


def stacks(tx):
    return [name.split("@")[0] for name in jax.eval_shape(tx.init, PARAMS).manifest]


def reading(layout):
    """A transformation that scales matrices by their residual side."""
    sides = {name: 1.0 + (g.residual == "in") for name, g in layout.groups.items()}
    scaled = lambda g, _: {name: sides[name] * x for name, x in g.items()}
    return optax.stateless(scaled)


@pytest.mark.parametrize(
    ("tx", "want"),
    [
        (om.muoneq(0.1), ["8x8"]),
        (om.soap(0.1), ["8x8"]),  # Its sides are a function of the layout.
        (om.aro(0.1), ["8x8-in", "8x8-out"]),
        (om.aro(0.1, orientation="short"), ["8x8"]),
        (om.aro(0.1, sharing="chain"), ["8x8-in", "8x8-out"]),
        (om.eigen_adam(0.1, orientation="residual"), ["8x8-in", "8x8-out"]),
        (om.eigen_adam(0.1), ["8x8"]),
        (om.on_matrices(reading, probe=False), ["8x8-in", "8x8-out"]),
        (om.on_matrices(lambda _: optax.sgd(0.1)), ["8x8"]),
    ],
)
def test_there_are_two_stacks_only_if_sides_are_read(tx, want):
    assert stacks(tx) == want


@pytest.mark.parametrize("placement", ["none", "owners"])
def test_sides_that_are_first_read_in_a_step_are_refused(placement):
    """A stack holds matrices of both sides; None would be a silent fault."""

    def late(layout):
        sides = lambda: {n: g.residual for n, g in layout.groups.items()}
        scaled = lambda g, _: {n: x * (sides()[n] == "in") for n, x in g.items()}
        return optax.stateless(scaled)

    specs = {path: jax.P() for path in SHAPES}
    placement = om.owners("x", param_specs=specs) if placement == "owners" else None
    tx = om.on_matrices(late, probe=False, placement=placement)
    with jax.set_mesh(jax.make_mesh((1,), ("x",))):
        state = jax.eval_shape(tx.init, PARAMS)
        with pytest.raises(ValueError, match=r"`residual` .* first read in `update`"):
            jax.eval_shape(tx.update, PARAMS, state, PARAMS)


def test_describe_names_the_stacks_of_the_state():
    (group,) = {row.group for row in om.describe(PARAMS).rows}
    assert [group] == list(jax.eval_shape(om.muoneq(0.1).init, PARAMS).manifest)


def split_by_side(monkeypatch):
    """Stacks as they are for a transformation that reads sides."""
    monkeypatch.setattr(_wrapper, "views_for", lambda *args: args[2].views)


@pytest.mark.broad
@pytest.mark.parametrize("name", ["muoneq", "soap"])
def test_a_portable_state_of_two_stacks_fits_one(name, monkeypatch):
    """The same steps follow, to rounding, as without the change in between."""
    params = normal(SHAPES, seed=1)
    grads = [normal(SHAPES, seed=i) for i in range(4)]
    recipe = getattr(om, name)

    def steps(tx, state, grads):
        update = jax.jit(tx.update)
        for g in grads:
            updates, state = update(g, state, params)
        return updates, state

    whole, _ = steps(tx := recipe(0.1), tx.init(params), grads)
    with monkeypatch.context() as patch:
        split_by_side(patch)
        old = recipe(0.1)
        _, state = steps(old, old.init(params), grads[:2])
        held = [key.split("@")[0] for key in state.manifest]
        assert held == ["8x8-in", "8x8-out"]
        portable = om.to_portable(state, params)
    moved = om.from_portable(portable, tx.init(params), params)
    assert list(moved.manifest) == list(tx.init(params).manifest)
    went_on, _ = steps(tx, moved, grads[2:])
    for path, want in whole.items():
        np.testing.assert_allclose(went_on[path], want, rtol=1e-4, atol=1e-6)


@pytest.mark.broad
def test_stacks_are_found_anew_when_a_leaf_is_frozen():
    """Gradients of some leaves only: the stacks are those that `init` makes of them."""
    tx, params = om.muoneq(0.1), normal(SHAPES, seed=1)
    some = {path: x for path, x in params.items() if "/o/" not in path}
    _, state = tx.update(some, tx.init(some), some)
    assert list(state.manifest) == list(tx.init(some).manifest)
