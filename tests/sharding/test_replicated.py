"""State that arrives replicated where it should be sharded is reported once."""

import warnings

import jax
import numpy as np
import optax
import pytest
from _meshes import KINDS, make_mesh
from _owned import cubic, given, normal, on_mesh
from _raised import raise_warnings
from jax.sharding import NamedSharding, PartitionSpec as P

import optax_matrix as om

SHAPES, SPECS = (
    {"a": (8, 12), "b": (8, 12)},
    {"a": P("fsdp", "tp"), "b": P("fsdp", "tp")},
)


@pytest.fixture(params=KINDS)
def mesh(request, cpus):
    return make_mesh("fsdp4-tp2", request.param, cpus)


def _setting(mesh, owned):
    params = on_mesh(normal(SHAPES, 0), SPECS, mesh)
    placement = om.owners(("fsdp", "tp"), param_specs=given(mesh, SPECS))
    tx = om.on_matrices(cubic, placement=placement if owned else None, probe=False)
    return tx, params, tx.init(params)


@pytest.mark.quick("auto-True")
@pytest.mark.parametrize("owned", [True, False])
def test_replicated_state_is_reported_once_by_name_and_bytes(mesh, owned):
    tx, params, state = _setting(mesh, owned)
    whole = jax.device_put(state, NamedSharding(mesh, P()))
    momentum = 8 * 8 * 12 * 4 + 8 * 16 if owned else 2 * 8 * 12 * 4
    said = rf"{momentum:,} bytes.*inner_state/.*trace.*state_specs"
    with pytest.warns(UserWarning, match=said):
        updates, _ = tx.update(params, whole, params)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again, _ = tx.update(params, whole, params)
    for path, x in updates.items():
        np.testing.assert_array_equal(again[path], x)


@pytest.mark.parametrize("owned", [True, False])
def test_types_show_it_inside_jit(cpus, owned):
    mesh = make_mesh("fsdp4-tp2", "explicit", cpus)
    tx, params, state = _setting(mesh, owned)
    whole = jax.device_put(state, NamedSharding(mesh, P()))
    with pytest.warns(UserWarning, match="whole on every device"):
        jax.jit(tx.update).lower(params, whole, params)


@pytest.mark.quick("explicit-True")
@pytest.mark.daily("True", "auto-False")
@pytest.mark.parametrize("owned", [True, False])
def test_sharded_state_and_small_meshes_are_silent(mesh, cpus, owned):
    tx, params, state = _setting(mesh, owned)
    with warnings.catch_warnings():
        raise_warnings()
        tx.update(params, state, params)
        jax.jit(tx.update).lower(params, state, params)
        kinds = mesh.axis_types
        one = jax.make_mesh((1, 1), ("fsdp", "tp"), kinds, devices=cpus[:1])
        tx, params, state = _setting(one, owned)
        tx.update(params, state, params)


@pytest.mark.broad
def test_a_replicated_model_has_replicated_state(cpus):
    mesh = make_mesh("fsdp8", "auto", cpus)
    params = jax.device_put(normal(SHAPES, 0), NamedSharding(mesh, P()))
    tx = om.on_matrices(optax.trace(0.9))
    with warnings.catch_warnings():
        raise_warnings()
        tx.update(params, tx.init(params), params)
