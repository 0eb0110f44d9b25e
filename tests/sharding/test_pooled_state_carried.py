"""State in slots that groups share, carried over, read, reset and restored."""

import functools

import jax
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from _meshes import KINDS
from _owned import given, normal, on_mesh
from _pooled import (
    MORE,
    SHAPES,
    assert_close,
    assert_equal,
    assert_same,
    make_mesh,
    muoneq,
    paths_of,
    run,
    soap,
    specs_of,
    within,
)
from flax import nnx

import optax_matrix as om
from optax_matrix.matrices.boxes import is_box

pytestmark = pytest.mark.broad


WAYS = {"pooled": (8, True), "apart": (8, False), "four": (4, True), "one": (1, True)}


@pytest.mark.daily("four")
@pytest.mark.parametrize("to", WAYS)
def test_portable_state_goes_anywhere_and_back(to, cpus):
    params, state, tx = run(soap, make_mesh("auto", cpus), MORE, pool=True)
    portable = om.to_portable(state, params)
    size, pool = WAYS[to]
    fill = lambda tx, params: om.from_portable(portable, tx.init(params), params)
    mesh = make_mesh("auto", cpus, size)
    new = run(soap, mesh, MORE, pool=pool, steps=0, state=fill, start=params)
    assert_equal(om.to_portable(new[1], new[0]), portable)
    begun = tx.init(params)
    back = om.from_portable(om.to_portable(new[1], new[0]), begun, params)
    assert_equal(om.to_portable(back, params), portable)
    assert_equal(back.slots, state.slots)
    same = jax.tree.map(lambda x, y: x.sharding == y.sharding, back, begun)
    assert jax.tree.all(same)
    om.check_restored(back)


@pytest.mark.parametrize("kind", KINDS)
def test_reset_state(kind, cpus):
    """A whole matrix, and rows of another one; padding and the rest stay."""
    mesh, found = make_mesh(kind, cpus), []
    where = dict.fromkeys(SHAPES, False) | {"a/1/kernel": True}
    where["c/0/kernel"] = np.arange(24) < 3
    for pool in (False, True):
        params, state, tx = run(soap, mesh, SHAPES, pool=pool, steps=2)
        with within(mesh):
            new = om.checkpoint.reset_state(tx, state, params, where)
        like = lambda x, y: x.shape == y.shape and x.sharding == y.sharding
        assert jax.tree.all(jax.tree.map(like, new, state))
        found.append(om.to_portable(new, params))
        changed = om.to_portable(state, params)
        assert any((found[-1][key] != x).any() for key, x in changed.items())
    assert_close(*found)


def test_reset_state_under_jit(cpus):
    params, state, tx = run(muoneq, make_mesh("auto", cpus), SHAPES, pool=True)
    reset = functools.partial(om.checkpoint.reset_state, tx)
    where = dict.fromkeys(SHAPES, False) | {"b/2/kernel": True}
    assert_equal(jax.jit(reset)(state, params, where), reset(state, params, where))


def test_what_monitors_and_bases_read(cpus):
    mesh, found = make_mesh("auto", cpus), []
    measures = {"captures": {"direction": (0, 1)}}
    make = lambda p: om.diagnostics.monitor(soap(p), **measures)
    for pool in (False, True):
        params, state, _ = run(make, mesh, SHAPES, pool=pool, steps=2)
        bases = om.diagnostics.bases(state, params)
        found.append((om.diagnostics.read_monitor(state), bases))
    assert_close(*found)


def test_a_state_is_adopted(cpus):
    """AdamW's moments become those of the matrices."""
    mesh, specs, found = make_mesh("auto", cpus), specs_of(SHAPES), []
    params = on_mesh(normal(SHAPES, 0), specs, mesh)
    old = optax.adamw(1e-3)
    _, old = old.update(params, old.init(params), params)
    for pool in (False, True):
        at = given(mesh, specs)
        tx = muoneq(om.owners("fsdp", pool_state=pool, param_specs=at))
        new = om.adopt_state(old, tx, params, unused="drop")
        found.append(om.to_portable(new, params))
    assert_equal(*found)


def test_the_tree_goes_through_orbax(cpus, tmp_path):
    params, state, tx = run(soap, make_mesh("auto", cpus), SHAPES, pool=True)
    with ocp.StandardCheckpointer() as saver:
        saver.save(tmp_path / "state", state)
        saver.wait_until_finished()
        got = saver.restore(tmp_path / "state", tx.init(params))
    assert_equal(got, state)
    om.check_restored(got)


def test_a_state_with_stacks_of_its_own_goes_on(cpus):
    """Such as one that was saved before: a step leaves its form as it is."""
    mesh = make_mesh("auto", cpus)
    want = run(muoneq, mesh, SHAPES, pool=False)
    begun = want[2].init(want[0])
    got = run(muoneq, mesh, SHAPES, pool=True, state=lambda *_: begun)
    assert_same(got, want)


def test_a_slot_of_another_leaf_is_refused(cpus):
    params, state, _ = run(soap, make_mesh("auto", cpus), SHAPES, pool=True, steps=0)
    leaves, structure = jax.tree.flatten(state)
    paths = paths_of(state)
    first, second = [i for i, path in enumerate(paths) if "slot_" in path][:2]
    leaves[first], leaves[second] = leaves[second], leaves[first]
    with pytest.raises(ValueError, match="restored by position"):
        om.to_portable(structure.unflatten(leaves), params)


def test_state_in_boxes(cpus):
    """Slots of NNX have the metadata of the parameters, with the axes of the owners."""
    mesh, specs = make_mesh("auto", cpus), specs_of(SHAPES)
    params = on_mesh(normal(SHAPES, 0), specs, mesh)
    named = lambda x: nnx.Param(x, out_sharding=("fsdp", None), eager_sharding=False)
    boxes = {path: named(x) for path, x in params.items()}
    owners = om.owners("fsdp", pool_state=True, param_specs=given(mesh, specs))
    tx = muoneq(owners)
    state = tx.init(boxes)
    assert all(map(is_box, state.slots.values()))
    _, new = jax.jit(tx.update)(params, state, params)
    assert jax.tree.structure(new) == jax.tree.structure(state)
    _, plain = jax.jit(tx.update)(params, tx.init(params), params)
    portable = om.to_portable(plain, params)
    assert_close(om.to_portable(new, params), portable)
    back = om.from_portable(portable, state, params)
    assert_equal(om.to_portable(back, params), portable)
    assert jax.tree.structure(back) == jax.tree.structure(state)
