"""State in frameworks that are not installed here: their mechanisms, restated.

Each stand-in says whose code it follows.
"""

import dataclasses
import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import optax_matrix as om

SHAPES = {"up": {"kernel": (8, 16), "bias": (16,)}, "down": {"kernel": (16, 8)}}
SPECS = {
    "up": {"kernel": P("fsdp", "tp"), "bias": P("tp")},
    "down": {"kernel": P("tp", "fsdp")},
}
AXES = ("fsdp", "tp")
IS_SHAPE = lambda x: isinstance(x, tuple)
PLACEMENTS = {
    "inherited": None,
    "owners": om.owners(AXES, param_specs=SPECS),
}


@pytest.fixture
def mesh(cpus):
    kinds = (AxisType.Auto,) * 2
    mesh = jax.make_mesh((4, 2), AXES, axis_types=kinds, devices=cpus)
    with jax.set_mesh(mesh):
        yield mesh


def _abstract():
    shape = lambda s: jax.ShapeDtypeStruct(s, jnp.float32)
    return jax.tree.map(shape, SHAPES, is_leaf=IS_SHAPE)


def _parts(state):
    """Stacks of which each device has an eighth."""
    stacks = [x for x in jax.tree.leaves(state) if x.ndim == 3]
    assert stacks
    return {x.size / x.addressable_shards[0].data.size for x in stacks}


def match_partition_rules(rules, tree):
    """As EasyLM's and EasyDeL's function of this name (`jax_utils`, `escale`)."""

    def name(key):
        kinds = ("key", "name", "idx")
        return str(next(getattr(key, kind) for kind in kinds if hasattr(key, kind)))

    def find(keys, leaf):
        if leaf.ndim == 0 or leaf.size == 1:
            return P()
        path = "/".join(map(name, keys))
        for rule, spec in rules:
            if re.search(rule, path):
                return spec
        raise ValueError(path)

    return jax.tree_util.tree_map_with_path(find, tree)


@pytest.mark.usefixtures("mesh")
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_first_matching_rule_is_the_spec(placement):
    tx = om.soap(1e-3, placement=PLACEMENTS[placement])
    params = _abstract()
    rules = om.sharding.state_rules(tx, params, SPECS)
    state = jax.eval_shape(tx.init, params)
    want = om.state_specs(tx, params, SPECS)
    assert match_partition_rules(rules, state) == want
    train_state = {"opt_state": state, "params": params}
    rest = ((".*", P()),)
    assert match_partition_rules(rules + rest, train_state)["opt_state"] == want
    assert any(any(spec) for _, spec in rules)


def test_a_path_that_ends_another_does_not_take_its_rule():
    specs = {"mu": {"w": P("a")}, "w": P("b")}
    tx = optax.GradientTransformation(
        lambda p: {"x": p["mu"]["w"], "mu": {"mu": p["mu"], "w": p["w"]}}, None
    )
    shape = jax.ShapeDtypeStruct((4,), jnp.float32)
    params = {"mu": {"w": shape}, "w": shape}
    rules = om.sharding.state_rules(tx, params, specs)
    state = jax.eval_shape(tx.init, params)
    assert match_partition_rules(rules, state) == om.state_specs(tx, params, specs)


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """As AXLearn's `common.utils.TensorSpec`, of which `OptStateSpec` is a name."""

    shape: tuple
    dtype: Any
    mesh_axes: Any


class PartitionedGradientTransformation(NamedTuple):
    """As in AXLearn's `common.optimizer_base`."""

    init: Any
    update: Any
    partition: Any


def with_partition_fn(base, partition_fn):
    """As in AXLearn's `common.optimizers`, without the unpacking of its parameters."""
    return PartitionedGradientTransformation(base.init, base.update, partition_fn)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_axlearn_partition_fn(mesh, placement):
    tx = om.muon(1e-2, placement=PLACEMENTS[placement])

    def partition_fn(param_specs):
        is_spec = lambda x: isinstance(x, TensorSpec)
        of = lambda f: jax.tree.map(f, param_specs, is_leaf=is_spec)
        shapes = of(lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype))
        specs = om.state_specs(tx, shapes, of(lambda s: s.mesh_axes))
        make = lambda x, spec: TensorSpec(x.shape, x.dtype, spec)
        return jax.tree.map(make, jax.eval_shape(tx.init, shapes), specs)

    optimizer = with_partition_fn(tx, partition_fn)
    make = lambda s, spec: TensorSpec(s, jnp.float32, spec)
    given = jax.tree.map(make, SHAPES, SPECS, is_leaf=IS_SHAPE)
    is_spec = lambda x: isinstance(x, TensorSpec)
    shardings = jax.tree.map(
        lambda s: NamedSharding(mesh, s.mesh_axes),
        optimizer.partition(given),
        is_leaf=is_spec,
    )
    params = jax.tree.map(lambda x: np.ones(x.shape, np.float32), _abstract())
    state = jax.jit(optimizer.init, out_shardings=shardings)(params)
    assert _parts(state) == {8.0}


def derive_optax_logical_axes(state, params_axes, rules):
    """As T5X's `OptaxStatePartitionRules`: axes by type of state, others refused."""
    if type(state) is tuple:
        parts = (derive_optax_logical_axes(x, params_axes, rules) for x in state)
        return tuple(parts)
    if type(state) not in rules:
        raise ValueError(f"Encountered state type {type(state)} without a rule.")
    return rules[type(state)](state, params_axes)


def test_t5x_rules_by_type_of_state(mesh):
    tx, params = om.muon(1e-2), _abstract()
    state = jax.eval_shape(tx.init, params)
    names = {
        "up": {"kernel": P("embed", "mlp"), "bias": P("mlp")},
        "down": {"kernel": P("mlp", "embed")},
    }
    to_mesh = lambda spec: P(*({"embed": "fsdp", "mlp": "tp"}[name] for name in spec))

    def rule(state, axes):
        del state
        return om.state_specs(tx, params, jax.tree.map(to_mesh, axes))

    specs = derive_optax_logical_axes(state, names, {type(state): rule})
    assert specs == om.state_specs(tx, params, SPECS)
    shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)
    ones = jax.tree.map(lambda x: np.ones(x.shape, np.float32), params)
    assert _parts(jax.jit(tx.init, out_shardings=shardings)(ones)) == {8.0}


@pytest.mark.broad
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_kauldron_propagates_from_the_parameters(mesh, placement):
    """As Kauldron's trainer: init under jit, parameters constrained, the rest free."""
    tx = om.muon(1e-2, placement=PLACEMENTS[placement])

    @jax.jit
    def init():
        ones = lambda x, spec: jax.lax.with_sharding_constraint(
            jnp.ones(x.shape), NamedSharding(mesh, spec)
        )
        params = jax.tree.map(ones, _abstract(), SPECS)
        return params, tx.init(params)

    params, state = init()
    step = jax.jit(tx.update)
    for _ in range(2):
        _, state = step(params, state, params)
    if placement == "owners":
        assert _parts(state) == {8.0}


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass(frozen=True)
class NamedArray:
    """As `haliax.NamedArray`: one leaf, its axes static."""

    array: Any
    axis_names: tuple

    def tree_flatten(self):
        return (self.array,), self.axis_names

    @classmethod
    def tree_unflatten(cls, axis_names, children):
        return cls(children[0], axis_names)


def infer_resource_partitions(tree, mapping, mesh):
    """As `haliax.partitioning`: axes of named arrays by the mapping, others whole."""

    def of(x):
        if not isinstance(x, NamedArray):
            return NamedSharding(mesh, P())
        return NamedSharding(mesh, P(*(mapping.get(name) for name in x.axis_names)))

    return jax.tree.map(of, tree, is_leaf=lambda x: isinstance(x, NamedArray))


@pytest.mark.broad
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_haliax_axes_reach_the_state(mesh, placement):
    mapping = {"embed": "fsdp", "mlp": "tp", "fsdp+tp": AXES}
    names = {
        "up": {"kernel": ("embed", "mlp"), "bias": ("mlp",)},
        "down": {"kernel": ("mlp", "embed")},
    }
    sizes = {"embed": 8, "mlp": 16}
    make = lambda ns: NamedArray(jnp.ones([sizes[n] for n in ns]), ns)
    params = jax.tree.map(make, names, is_leaf=IS_SHAPE)
    placed = None
    if placement == "owners":
        of = lambda ns: P(*(mapping[n] for n in ns))
        specs = jax.tree.map(of, names, is_leaf=IS_SHAPE)
        specs = {k: {n: {"0": s} for n, s in v.items()} for k, v in specs.items()}
        placed = om.owners(AXES, param_specs=specs)
    rule = om.matrices.by_path(include="kernel", exclude="bias")
    tx = om.muon(1e-2, placement=placed, dimension_numbers=rule)
    shardings = infer_resource_partitions(
        jax.eval_shape(tx.init, params), mapping, mesh
    )
    state = jax.jit(tx.init, out_shardings=shardings)(params)
    assert _parts(state) == {8.0}
    updates, new = jax.jit(tx.update)(params, state, params)
    assert jax.tree.structure(new) == jax.tree.structure(state)
    bare = jax.tree.map(
        lambda x: x.array, params, is_leaf=lambda x: isinstance(x, NamedArray)
    )
    plain = om.muon(1e-2, dimension_numbers=rule)
    want, _ = jax.jit(plain.update)(bare, plain.init(bare), bare)
    for x, y in zip(jax.tree.leaves(updates), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6)
