"""Of several batch axes with names, state is split by those that split the leaf."""

import flax.linen as nn
import jax
import numpy as np
import optax
import pytest
from _meshes import KINDS
from _owned import assert_same_path, normal, on_mesh, rollout
from _registry import small
from flax import nnx
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec as P

import optax_matrix as om
from optax_matrix.matrices import infer

# As in MaxText's base.yml.
RULES = (
    ("circular_repeats", []),
    ("exp", "expert"),
    ("embed", ["fsdp"]),
    ("mlp", ["tensor"]),
    ("layers", "stage"),
    ("moe_layers", []),
)
MESH = AbstractMesh((2, 2, 2, 1), ("stage", "expert", "fsdp", "tensor"))
SIZES = {"layers": 4, "exp": 6, "embed": 8, "mlp": 16}
STACKS = {  # The mesh axes of the batch axis of the stack, and its likeliest name.
    ("layers", "embed", "mlp"): (("stage",), "layers"),
    ("circular_repeats", "layers", "embed", "mlp"): (("stage",), "layers"),
    ("circular_repeats", "layers", "embed", "layers_per_stage", "mlp"): (
        ("stage",),
        "layers",
    ),
    ("exp", "layers", "embed", "mlp"): (("expert", "stage"), "exp"),
    ("layers", "exp", "embed", "mlp"): (("stage", "expert"), "exp"),
    ("exp", "moe_layers", "embed", "mlp"): (("expert",), "exp"),
    ("circular_repeats", "moe_layers", "embed", "mlp"): ((), "moe_layers"),
}


def shape_of(names):
    return tuple(SIZES.get(name, 2) for name in names)


def nnx_params(names):
    x = jax.ShapeDtypeStruct(shape_of(names), np.float32)
    return nnx.State(
        {"m": {"wo": nnx.Param(x, out_sharding=names, eager_sharding=False)}}
    )


def linen_params(names):
    x = jax.ShapeDtypeStruct(shape_of(names), np.float32)
    return {"m": {"wo": nn.LogicallyPartitioned(x, names)}}


def flat(entry):
    several = entry if isinstance(entry, tuple) else (entry,)
    return tuple(x for x in several if x is not None)


def momentum(state, is_box):
    (box,) = (
        x for x in jax.tree.leaves(state, is_leaf=is_box) if is_box(x) and x.ndim == 3
    )
    return box


def state_of(params, name="muoneq"):
    return jax.eval_shape(
        small(name)(0.1, dimension_numbers=infer(params)).init, params
    )


def is_variable(x):
    return isinstance(x, nnx.Variable)


@pytest.mark.parametrize("names", STACKS, ids="-".join)
def test_nnx_state_says_all_axes_of_the_mesh_where_rules_are_known(names):
    with jax.sharding.use_abstract_mesh(MESH), nn.logical_axis_rules(RULES):
        state = state_of(nnx_params(names))
        box = momentum(state, is_variable)
        # What MaxText computes, and what NNX does.
        said = nnx.get_partition_spec(box).get_value()
        rules = (*box.get_metadata().get("sharding_rules", ()), *RULES)
        mapped = nn.logical_to_mesh_axes(box.get_metadata()["out_sharding"], rules)
    for spec in (said, mapped):
        assert flat(spec[0]) == STACKS[names][0]
        assert set(flat(spec[1]) + flat(spec[2])) <= {"fsdp", "tensor"}


@pytest.mark.parametrize("names", STACKS, ids="-".join)
@pytest.mark.parametrize("kind", ["nnx", "linen"])
def test_without_rules_the_likeliest_name_stays(names, kind):
    params = {"nnx": nnx_params, "linen": linen_params}[kind]
    with jax.sharding.use_abstract_mesh(MESH):
        made = params(names)
        specs = om.state_specs(
            small("muoneq")(0.1, dimension_numbers=infer(made)), made
        )
    found = {spec[0] for spec in jax.tree.leaves(specs) if len(spec) == 3}
    assert found == {STACKS[names][1]}


@pytest.mark.broad
@pytest.mark.parametrize("name", ["muoneq", "soap", "racs", "alice"])
def test_state_holds_no_more_than_its_share(name):
    """Of four devices along two batch axes each has a quarter of what is per matrix."""
    shapes = {"wi": (4, 6, 8, 16), "wo": (4, 6, 16, 8)}
    params = {p: jax.ShapeDtypeStruct(s, np.float32) for p, s in shapes.items()}
    shardings = NamedSharding(MESH, P("stage", "expert"))
    specs = om.state_specs(small(name)(0.1), params, shardings)
    state = jax.eval_shape(small(name)(0.1).init, params)
    pairs = zip(jax.tree.leaves(state), jax.tree.leaves(specs), strict=True)
    large = [s for x, s in pairs if x.shape and x.shape[0] == 24 and x.size >= 24 * 8]
    assert large
    assert all(flat(spec[0]) == ("stage", "expert") for spec in large)


def part_and_gram(layout=None):
    """Momentum, some of its columns, and their Gram matrix."""
    del layout

    def init(stacks):
        return jax.tree.map(lambda x: (x, x[..., :4], x[..., :4, :4]), stacks)

    def update(updates, state, params=None):
        del params
        old = {name: held[0] for name, held in state.items()}
        new = jax.tree.map(lambda m, x: m / 2 + x, old, updates)
        held = {n: (m, m[..., :4], m[..., :4].mT @ m[..., :4]) for n, m in new.items()}
        return jax.tree.map(lambda m: m - m @ m.mT @ m / 99, new), held

    return optax.GradientTransformation(init, update)


@pytest.mark.broad
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "spec", [P(None, "fsdp"), P("tp", "fsdp"), P("tp", "fsdp", "x")]
)
def test_two_axes_on_one_give_what_one_device_gives(spec, kind, cpus):
    axes, types = ("fsdp", "tp", "x"), (KINDS[kind],) * 3
    mesh = jax.make_mesh((2, 2, 2), axes, types, devices=cpus)
    shapes = {"wi": (4, 6, 8, 16), "wo": (4, 6, 16, 8)}
    specs, steps = dict.fromkeys(shapes, spec), 3
    params, noise = (normal(shapes, seed) for seed in (0, 1))
    tx = om.on_matrices(part_and_gram, probe=False)
    want, _, _ = rollout(tx, params, noise, steps)
    with jax.set_mesh(mesh):
        placed = [on_mesh(x, specs, mesh) for x in (params, noise)]
        to_sharding = lambda s: NamedSharding(mesh, s)
        places = jax.tree.map(to_sharding, om.state_specs(tx, placed[0]))
        state = jax.tree.map(jax.device_put, tx.init(placed[0]), places)
        got, held, _ = rollout(tx, *placed, steps, state)
    assert_same_path(got, want)
    batch = {x.sharding.spec[0] for x in jax.tree.leaves(held) if x.ndim == 3}
    assert batch == {("tp", "fsdp") if spec[0] else "fsdp"}
