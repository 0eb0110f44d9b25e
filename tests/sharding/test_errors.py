"""Every refusal names the argument, the rule, what it got, and what to do."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _meshes import KINDS, make_mesh
from _owned import cubic, given, normal, on_mesh
from jax.sharding import NamedSharding, PartitionSpec as P
from jax.tree_util import Partial

import optax_matrix as om

SHAPES = {"kernel": (8, 4)}
SPECS = {"kernel": P("fsdp", "tp")}


@pytest.fixture
def mesh(cpus):
    return make_mesh("fsdp4-tp2", "auto", cpus)


def _tx(placement, build=cubic):
    return om.on_matrices(build, placement=placement, probe=False)


def _raises(*words):
    """All words must stand in the message, in this order."""
    return pytest.raises(ValueError, match="(?s)" + ".*".join(map(re.escape, words)))


@pytest.mark.parametrize("axes", [None, 3, (), ("fsdp", 1), {"fsdp"}])
def test_axes_must_be_names(axes):
    with _raises("`mesh_axes` must be the name", repr(axes), "for example owners("):
        om.owners(axes)


def test_several_axes_are_one_tuple():
    with _raises("`mesh_axes` must be one", "got 'a', 'b'", "owners(('a', 'b'))"):
        om.owners("a", "b")  # pyright: ignore[reportCallIssue]
    with _raises("`mesh_axes` must be one", "keywords, got 'a', 8."):
        om.owners("a", 8)  # pyright: ignore[reportCallIssue]
    assert om.owners(mesh_axes=("a", "b")).mesh_axes == ("a", "b")


TAKE_AN_OPTIMIZER = {
    "plan": om.sharding.plan,
    "state_specs": om.state_specs,
    "state_rules": om.sharding.state_rules,
    "state_bytes": om.diagnostics.state_bytes,
    "reset_state": lambda tx, params: om.checkpoint.reset_state(
        tx, params, params, "kernel"
    ),
    "adopt_state": lambda tx, params: om.adopt_state(params, tx, params),
}


@pytest.mark.parametrize("name", TAKE_AN_OPTIMIZER)
def test_an_optimizer_is_made_and_comes_first(name):
    run, params = TAKE_AN_OPTIMIZER[name], {"kernel": jnp.ones((8, 4))}
    for make in (om.muon, optax.adamw):
        called = f"call it: tx={make.__name__}(...)"
        with _raises("`tx` must be what", "got the function itself", called):
            run(make, params)
    with _raises("`tx` must be an optimizer", "got dict; see the order"):
        run(params, om.muon(0.1))


@pytest.mark.parametrize("kind", KINDS)
def test_the_way_out_is_not_what_is_so_already(kind, cpus):
    mesh, params = make_mesh("fsdp4-tp2", kind, cpus), {"kernel": jnp.ones((8, 4))}
    ways = {"explicit": "give parameters that are on it"}
    tx = om.muon(1.0, placement=om.owners("fsdp"))
    with jax.set_mesh(mesh), _raises(ways.get(kind, "make all axes Explicit")):
        om.sharding.plan(tx, params, NamedSharding(mesh, P("fsdp")))


def test_axes_must_differ():
    with _raises("`mesh_axes` must not repeat", "('fsdp', 'tp', 'fsdp')"):
        om.owners(("fsdp", "tp", "fsdp"))


@pytest.mark.parametrize("wire", ["bfloat17", jnp.int8, bool, 16.0, object()])
def test_wire_dtype_must_float(wire):
    with _raises("`wire_dtype` must be None, jnp.bfloat16", "overflows", repr(wire)):
        om.owners("fsdp", wire_dtype=wire)


@pytest.mark.parametrize("spec", ["fsdp", ("fsdp", None), 3])
def test_param_specs_must_be_specs(spec):
    words = "`param_specs` must hold", "PartitionSpec", "at 'mlp/kernel", "replicated"
    with _raises(*words):
        om.owners("fsdp", param_specs={"mlp": {"kernel": spec}})
    with _raises(*words):
        params = {"mlp": {"kernel": jnp.ones((8, 4))}}
        om.state_specs(optax.adam(0.1), params, {"mlp": {"kernel": spec}})


def test_from_params_needs_sharded_parameters():
    params = {"mlp": {"kernel": np.ones((8, 4), np.float32)}}
    with _raises("`params` must be on a mesh", "'mlp/kernel'", "param_specs="):
        om.owners.from_params(params, "fsdp")


@pytest.mark.parametrize("placement", ["fsdp", om.owners, ("fsdp",)])
def test_placement_must_be_one(placement):
    with _raises("`placement` must be None, ", "owners(", repr(placement)):
        om.on_matrices(cubic, placement=placement)


def test_there_must_be_a_mesh():
    words = "`mesh_axes` ('fsdp',) must be axes of a mesh", "set_mesh", "NamedSharding"
    with _raises(*words):
        _tx(om.owners("fsdp")).init(normal(SHAPES, 0))
    with _raises(*words):
        _tx(om.owners("fsdp", param_specs=SPECS)).init(normal(SHAPES, 0))


@pytest.mark.parametrize("kind", KINDS)
def test_the_mesh_must_have_the_axes(kind, cpus):
    mesh = make_mesh("fsdp4-tp2", kind, cpus)
    params = on_mesh(normal(SHAPES, 0), SPECS, mesh)
    placement = om.owners(("fsdp", "data"), param_specs=given(mesh, SPECS))
    with _raises("`mesh_axes` must be axes of the mesh ('fsdp', 'tp')", "['data']"):
        _tx(placement).init(params)


def test_auto_axes_need_specs_at_init_and_update(mesh):
    params = on_mesh(normal(SHAPES, 0), SPECS, mesh)
    state = _tx(om.owners("fsdp", param_specs=given(mesh, SPECS))).init(params)
    tx = _tx(om.owners("fsdp"))
    words = (
        "`param_specs` must say",
        "'kernel'",
        "fsdp: ",
        "Auto",
        "owners.from_params(",
    )
    with _raises(*words):
        tx.init(params)
    with _raises(*words):
        jax.jit(tx.update)(params, state)
    with _raises("`param_specs` must cover every matrix", "'kernel'", "'other'"):
        _tx(om.owners("fsdp", param_specs={"other": P()})).init(params)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (P("data"), ("must name axes of the mesh ('fsdp', 'tp')", "['data']")),
        (P(None, ("fsdp", "tp")), ("must divide", "4 is not divisible by the 8")),
        (P("fsdp", None, "tp"), ("at most 2 entries", "(8, 4)", "'tp'")),
        (P("fsdp", "fsdp"), ("must not name a mesh axis twice", "'fsdp'")),
    ],
)
def test_specs_must_fit(spec, words, mesh):
    params = on_mesh(normal(SHAPES, 0), SPECS, mesh)
    with _raises("`param_specs` of 'kernel'", *words):
        _tx(om.owners("fsdp", param_specs={"kernel": spec})).init(params)
    with _raises("`param_specs` of 'kernel'", *words):
        _tx(om.owners("fsdp", param_specs=spec)).init(params)


@pytest.mark.parametrize("kind", KINDS)
def test_state_of_a_group_must_be_per_matrix(kind, cpus):
    def init(stacks):  # Shared by the matrices of a stack: nobody could own it.
        return {name: jnp.zeros((3, x.shape[-1])) for name, x in stacks.items()}

    shared = optax.GradientTransformation(init, lambda u, s, _=None: (u, s))
    mesh = make_mesh("fsdp4-tp2", kind, cpus)
    params = on_mesh(normal(SHAPES, 0), SPECS, mesh)
    placement = om.owners(("fsdp", "tp"), param_specs=given(mesh, SPECS))
    with _raises("State", "4x8@", "scalar", "8 matrices", "(3, 8)", "belongs"):
        _tx(placement, shared).init(params)


def test_state_of_another_mesh_is_refused(mesh, cpus):
    params = on_mesh(normal(SHAPES, 0), SPECS, mesh)
    state = _tx(om.owners("fsdp", param_specs=given(mesh, SPECS))).init(params)
    other = make_mesh("fsdp8", "auto", cpus)
    moved = on_mesh(normal(SHAPES, 0), {"kernel": P("fsdp")}, other)
    tx = _tx(om.owners("fsdp", param_specs={"kernel": NamedSharding(other, P("fsdp"))}))
    with _raises("`state` must belong to", "sharding", "from_portable"):
        tx.update(moved, state)


def test_parameters_on_two_meshes(cpus):
    def on(devices):
        kinds = (jax.sharding.AxisType.Explicit,)
        mesh = jax.make_mesh((len(devices),), ("fsdp",), kinds, devices=devices)
        return jax.device_put(
            np.ones((8, 8), np.float32), NamedSharding(mesh, P("fsdp"))
        )

    tx = om.on_matrices(optax.trace(0.9), placement=om.owners("fsdp"))
    with pytest.raises(ValueError, match=r"must be on one mesh.*optax\.partition"):
        tx.init({"a": on(cpus), "b": on(cpus[:4])})


def test_specs_must_be_those_that_parameters_have(mesh):
    params = on_mesh(normal(SHAPES, 0), SPECS, mesh)
    other = P(None, "fsdp")
    with _raises(
        "`param_specs` must say how parameters are sharded", "owners.from_params"
    ):
        _tx(om.owners("fsdp", param_specs=other)).init(params)


def test_specs_must_agree_with_types(cpus):
    params = on_mesh(normal(SHAPES, 0), SPECS, make_mesh("fsdp4-tp2", "explicit", cpus))
    with _raises("`param_specs` of 'kernel' must agree with its type", "omit them"):
        _tx(om.owners("fsdp", param_specs=P(None, "fsdp"))).init(params)


def test_state_per_matrix_must_lie_under_a_name(mesh):
    init = lambda params: tuple(jnp.zeros_like(x) for x in params.values())
    as_tuple = optax.GradientTransformation(init, optax.identity().update)
    params = on_mesh(normal(SHAPES, 0), SPECS, mesh)
    placement = om.owners(("fsdp", "tp"), param_specs=given(mesh, SPECS))
    with _raises("must be under the name of its stack"):
        om.on_matrices(as_tuple, placement=placement).init(params)


@pytest.mark.parametrize("wire", [jnp.float16, jnp.float8_e4m3fn])
def test_wire_dtype_must_have_the_range(wire):
    with _raises("`wire_dtype` must be None, jnp.bfloat16", "overflows"):
        om.owners("fsdp", wire_dtype=wire)


@pytest.mark.broad
def test_coupling_is_found_under_a_traced_hyperparameter(mesh):
    def method(decay):
        def build(layout, decay):
            del layout
            return optax.chain(optax.trace(decay), optax.clip_by_global_norm(1.0))

        placement = om.owners(("fsdp", "tp"), param_specs=given(mesh, SPECS))
        return om.on_matrices(Partial(build, decay=decay), placement=placement)

    tx = om.inject_hyperparams(method)(decay=0.9)
    params = on_mesh(normal(SHAPES, 0), SPECS, mesh)
    with _raises("`build` must treat each matrix", "per_matrix"):
        jax.jit(tx.init)(params)
