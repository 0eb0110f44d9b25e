"""Specs of the state from shapes alone, as a checkpoint or a compiler wants them."""

import jax
import numpy as np
import optax
import pytest
from _meshes import KINDS, make_mesh
from _owned import cubic, given, normal, on_mesh
from jax.sharding import NamedSharding, PartitionSpec as P

import optax_matrix as om

SHAPES = {"a": (8, 6), "layers": (4, 6, 8), "bias": (8,)}
SPECS = {"a": P("fsdp", "tp"), "layers": P("fsdp", None, "tp"), "bias": P("tp")}
AXES = ("fsdp", "tp")


@pytest.fixture(params=KINDS)
def mesh(request, cpus):
    return make_mesh("fsdp4-tp2", request.param, cpus)


def _abstract(params, with_sharding):
    return {
        p: jax.ShapeDtypeStruct(
            x.shape, x.dtype, sharding=x.sharding if with_sharding else None
        )
        for p, x in params.items()
    }


def _specs(state):
    return jax.tree.map(lambda x: _trimmed(x.sharding.spec), state)


def _trimmed(spec):
    """Without what says nothing at the end, as compiled functions give it back."""
    while spec and spec[-1] is None:
        spec = spec[:-1]
    return tuple(spec)


def _all_forms(mesh, params):
    shardings = {p: NamedSharding(mesh, spec) for p, spec in SPECS.items()}
    yield om.owners(AXES, param_specs=shardings), params, None
    yield om.owners(AXES, param_specs=shardings), params, SPECS
    yield om.owners(AXES, param_specs=shardings), _abstract(params, True), None
    yield om.owners.from_params(params, AXES), _abstract(params, False), shardings
    yield om.owners(AXES, param_specs=shardings), _abstract(params, False), SPECS


def test_state_specs_need_no_arrays(mesh):
    params = on_mesh(normal(SHAPES, 0), SPECS, mesh)
    make = lambda placement: optax.chain(
        om.on_matrices(cubic, placement=placement, probe=False), optax.adam(0.1)
    )
    tx = make(om.owners(AXES, param_specs=given(mesh, SPECS)))
    state = tx.init(params)
    want = _specs(state[0])
    # Two axes of owners for one matrix and for the six of a layer's share.
    assert want.manifest == dict.fromkeys(want.manifest, (AXES,))
    assert len(want.manifest) == 2
    for placement, given_params, param_specs in _all_forms(mesh, params):
        specs = om.state_specs(make(placement), given_params, param_specs)
        assert jax.tree.structure(specs) == jax.tree.structure(state)
        assert all(isinstance(spec, P) for spec in jax.tree.leaves(specs))
        assert jax.tree.map(tuple, specs[0]) == want
        moments = specs[1][0].mu
        for path, spec in SPECS.items():
            assert tuple(moments[path]) == _trimmed(spec)


def test_init_from_shapes_and_under_jit_lies_with_the_owners(mesh):
    params = on_mesh(normal(SHAPES, 0), SPECS, mesh)
    placement = om.owners(AXES, param_specs=given(mesh, SPECS))
    tx = om.on_matrices(cubic, placement=placement, probe=False)
    want = tx.init(params)
    for state in (jax.jit(tx.init)(params), jax.eval_shape(tx.init, params)):
        assert jax.tree.structure(state) == jax.tree.structure(want)
        shape = lambda x: (x.shape, x.dtype)
        assert jax.tree.map(shape, state) == jax.tree.map(shape, want)
    state = jax.jit(tx.init)(params)
    for x, y in zip(jax.tree.leaves(state), jax.tree.leaves(want), strict=True):
        assert x.sharding.is_equivalent_to(y.sharding, x.ndim)
        np.testing.assert_array_equal(x, y)


def test_state_specs_of_as_sharded_state(mesh):
    params = on_mesh(normal(SHAPES, 0), SPECS, mesh)
    tx = om.on_matrices(cubic, probe=False)
    state, specs = tx.init(params), om.state_specs(tx, params)
    for x, spec in zip(jax.tree.leaves(state), jax.tree.leaves(specs), strict=True):
        if isinstance(x.sharding, NamedSharding):
            assert x.sharding.is_equivalent_to(NamedSharding(mesh, spec), x.ndim)
        else:
            assert not any(spec)


def test_a_wrapped_init_is_refused(mesh):
    params = on_mesh(normal(SHAPES, 0), SPECS, mesh)
    placement = om.owners(AXES, param_specs=given(mesh, SPECS))
    tx = om.on_matrices(cubic, placement=placement, probe=False)
    wrapped = optax.GradientTransformation(jax.jit(tx.init), tx.update)
    with pytest.raises(ValueError, match=r"`tx` must be the transformation itself"):
        om.state_specs(wrapped, params)


@pytest.mark.parametrize(
    ("specs", "words"),
    [
        ({"other": P()}, r"must cover every parameter, .* only for 'other'"),
        (P("fsdp", None, None, "tp"), r"at most . entries"),
        (P("fsdp", "fsdp"), r"must not name a mesh axis twice"),
        (P("nope"), r"must name axes of the mesh .*'nope'"),
    ],
)
def test_specs_of_state_must_fit(mesh, specs, words):
    params = on_mesh(normal(SHAPES, 0), SPECS, mesh)
    with pytest.raises(ValueError, match=words):
        om.state_specs(optax.adam(0.1), params, specs)
