"""Leaves whose matrices are equal are one group, whatever their numbers of layers."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _meshes import KINDS, collectives
from _owned import cubic, given, normal
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec as P

import optax_matrix as om
from optax_matrix._thresholds import Thresholds
from optax_matrix.sharding import _bundles
from optax_matrix.sharding._bundles import MOST_STACKS
from optax_matrix.sharding._state_specs import recorded

# Layers in front, last or in the middle, no axis of layers, and one layer. The kernels
# are (in, out) = (32, 64): 3 + 2 + 6 + 1 + 1 of them.
LEAVES = {
    "dense/up": (3, 32, 64),
    "last/up": (32, 64, 2),
    "middle/up": (32, 6, 64),
    "one/up": (32, 64),
    "single/up": (1, 32, 64),
}
LAYERS = {"dense/up": 0, "last/up": 2, "middle/up": 1, "one/up": None, "single/up": 0}
MESHES = {
    "fsdp8": {"fsdp": 8, "tp": 1},
    "fsdp4-tp2": {"fsdp": 4, "tp": 2},
    "replicas": {"data": 2, "fsdp": 2, "tp": 2},
}
MATRIX = om.MatrixDimensionNumbers(0, 1)


def with_layers(path, sides):
    """What the sides of a kernel have, for a leaf whose layers have None."""
    sides = list(sides)
    if (axis := LAYERS[path]) is not None:
        sides.insert(axis, None)
    return sides


def numbers_of(path, **options):
    sides = with_layers(path, ("in", "out"))
    axes = sides.index("in"), sides.index("out")
    return om.MatrixDimensionNumbers(*axes, **options)


SPECS = {path: P(*with_layers(path, ("fsdp", "tp"))) for path in LEAVES}
NUMBERS = {path: numbers_of(path) for path in LEAVES}


def unrolled(tree):
    """Each layer as a leaf."""
    found = {}
    for path, x in tree.items():
        axis, x = LAYERS[path], np.asarray(x)
        layers = [x] if axis is None else np.moveaxis(x, axis, 0)
        found |= {f"{path}/{i}": layer for i, layer in enumerate(layers)}
    return found


def both(tree):
    """The tree with its specs and axes, and the same unrolled."""
    layers = unrolled(tree)
    specs = dict.fromkeys(layers, P("fsdp", "tp"))
    return (tree, SPECS, NUMBERS), (layers, specs, dict.fromkeys(layers, MATRIX))


def run(build, leaves, case, kind, cpus, extra=None, **options):
    """Updates of three steps, the state, and the program."""
    tree, specs, numbers = leaves
    sizes = MESHES[case]
    types = (KINDS[kind],) * len(sizes)
    mesh = jax.make_mesh(
        tuple(sizes.values()), tuple(sizes), axis_types=types, devices=cpus
    )
    owners = om.owners(tuple(sizes), param_specs=given(mesh, specs), **options)
    tx = build(placement=owners, dimension_numbers=numbers)
    extra = {} if extra is None else {"seen": extra}
    with jax.set_mesh(mesh) if kind == "explicit" else contextlib.nullcontext():
        shardings = {path: NamedSharding(mesh, spec) for path, spec in specs.items()}
        params = jax.device_put(tree, shardings)
        state = jax.jit(tx.init)(params)
        update = lambda g, s, p, extra: tx.update(g, s, p, **extra)
        step = jax.jit(update).lower(params, state, params, extra).compile()
        found = []
        for i in range(3):
            grads = {path: x * (1 + i) + i for path, x in tree.items()}
            args = (grads, state, params, extra), {}
            args, _ = jax.device_put(args, step.input_shardings)
            updates, state = step(*args)
            found.append(jax.tree.map(np.asarray, updates))
    return found, state, step


def assert_same(got, want):
    for ours, theirs in zip(got, want, strict=True):
        flat = unrolled(ours)
        assert list(flat) == list(theirs)
        for path, x in flat.items():
            np.testing.assert_array_equal(x, theirs[path], err_msg=path)


def blocks(**options):
    return om.on_matrices(cubic, probe=False, **options)


BUILDS = {"cubic": blocks} | {
    name: lambda name=name, **options: getattr(om, name)(0.1, **options)
    for name in ("muoneq", "racs", "soap", "aro")
}


@pytest.mark.daily("cubic-replicas", "muoneq-fsdp4-tp2-explicit")
@pytest.mark.broad
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", MESHES)
@pytest.mark.parametrize("name", BUILDS)
def test_one_group_whose_updates_are_those_of_unrolled_layers(name, case, kind, cpus):
    """Bit for bit: the same stacks, cut from other leaves."""
    scanned, layers = both(normal(LEAVES, 0))
    got, state, step = run(BUILDS[name], scanned, case, kind, cpus)
    want, _, other = run(BUILDS[name], layers, case, kind, cpus)
    assert_same(got, want)
    assert collectives(step) == collectives(other)
    stacks = [len(x) for x in jax.tree.leaves(state) if x.ndim == 3]
    assert set(stacks) == {16}  # Thirteen matrices for eight owners.


@pytest.mark.broad
@pytest.mark.parametrize(
    "options",
    [{"wire_dtype": jnp.bfloat16}, {"pad_to": 16}, {"teams": 2}],
    ids=lambda options: next(iter(options)),
)
def test_whatever_owners_are_asked_for(options, cpus):
    scanned, layers = both(normal(LEAVES, 0))
    where = "fsdp4-tp2", "auto", cpus
    got, *_ = run(BUILDS["muoneq"], scanned, *where, **options)
    want, *_ = run(BUILDS["muoneq"], layers, *where, **options)
    assert_same(got, want)


def reading(g, state, params, *, seen, **_):
    new = {n: x + 0.5 * params[n] @ seen[n] for n, x in g.items()}
    return new, state


@pytest.mark.broad
def test_parameters_and_statistics_travel_as_gradients_do(cpus):
    """A statistic has its layers in front."""

    def build(**options):
        init = lambda _: optax.EmptyState()
        return om.on_matrices(
            optax.GradientTransformationExtraArgs(init, reading),
            statistics={"seen": ("in", "in")},
            needs_params=True,
            probe=False,
            **options,
        )

    tree = normal(LEAVES, 0)
    scanned, layers = both(tree)
    seen = {path: np.float32(np.cov(x)) for path, x in unrolled(tree).items()}
    stacked = {}
    for path in tree:
        found = np.stack([x for p, x in seen.items() if p.startswith(path)])
        stacked[path] = found[0] if LAYERS[path] is None else found
    where = "fsdp4-tp2", "auto", cpus
    got, *_ = run(build, scanned, *where, extra=stacked)
    want, *_ = run(build, layers, *where, extra=seen)
    assert_same(got, want)
    x = unrolled(tree)
    for path, update in unrolled(got[0]).items():
        exact = x[path] + 0.5 * (x[path].T @ seen[path]).T
        np.testing.assert_allclose(update, exact, 1e-4, 1e-4)


def layout_of(tree, specs, numbers, axes, **options):
    """The stacks of `on_matrices` on an abstract mesh."""
    mesh = AbstractMesh((4, 2), ("fsdp", "tp"))
    like = {p: jax.ShapeDtypeStruct(shape, jnp.float32) for p, shape in tree.items()}
    placed = {path: NamedSharding(mesh, specs[path]) for path in tree}
    owners = om.owners(axes, param_specs=placed, **options)
    tx = blocks(placement=owners, dimension_numbers=numbers)
    *_, found = recorded(tx, like, placed)
    return found.layouts[0][0]


def test_sharded_layers_stay_groups_of_their_own():
    """Their owners are those that hold them, which depends on the leaf."""
    tree = {"a": (4, 32, 64), "b": (8, 32, 64), "c": (2, 32, 64), "d": (3, 32, 64)}
    specs = {path: P("fsdp", None, None) for path in "ab"}
    specs |= {path: P(None, "fsdp", None) for path in "cd"}
    numbers = dict.fromkeys(tree, om.MatrixDimensionNumbers(1, 2))
    layout = layout_of(tree, specs, numbers, ("fsdp", "tp"))
    members = [{m.path for m in g.members} for g in layout.groups.values()]
    assert sorted(map(sorted, members)) == [["a"], ["b"], ["c", "d"]]


def test_matrices_that_are_split_otherwise_stay_apart():
    tree = {"a": (4, 32, 64), "b": (2, 32, 64), "c": (3, 32, 64)}
    specs = {"a": P(None, "fsdp"), "b": P(None, None, "fsdp"), "c": P(None, "fsdp")}
    numbers = dict.fromkeys(tree, om.MatrixDimensionNumbers(1, 2))
    numbers["c"] = om.MatrixDimensionNumbers(1, 2, output_sections=2)
    layout = layout_of(tree, specs, numbers, ("fsdp", "tp"))
    assert [g.count for g in layout.groups.values()] == [8, 8, 16]


def test_the_owners_of_each_leaf_are_its_own():
    """Thirteen matrices: five owners have two, each with consecutive numbers."""
    layout = layout_of(LEAVES, SPECS, NUMBERS, ("fsdp", "tp"))
    (group,) = layout.groups.values()
    assert [(m.path, m.start, m.count) for m in group.members] == [
        ("dense/up", 0, 3),
        ("last/up", 3, 2),
        ("middle/up", 5, 6),
        ("one/up", 11, 1),
        ("single/up", 12, 1),
    ]
    owned = {path: layout.owners_of(path) for path in LEAVES}
    assert owned["dense/up"] == "0-2 of 8"
    assert owned["one/up"] == "3 of 8"
    assert owned["single/up"] == "4 of 8"


@pytest.mark.broad
def test_axes_inside_matrices(cpus):
    """The partitioner splits the columns; the groups are the same."""
    layout = layout_of(LEAVES, SPECS, NUMBERS, ("fsdp",))
    assert layout.inside == ("tp",)
    (group,) = layout.groups.values()
    assert group.spec == (("fsdp",), ("tp",), None)
    scanned, layers = both(normal(LEAVES, 0))

    def build(placement, **options):
        placement = om.owners(("fsdp",), param_specs=placement.param_specs)
        return blocks(placement=placement, **options)

    where = "fsdp4-tp2", "auto", cpus
    got, *_ = run(build, scanned, *where)
    want, *_ = run(build, layers, *where)
    assert_same(got, want)


def test_a_plan_counts_them_once():
    mesh = AbstractMesh((4, 2), ("fsdp", "tp"))
    specs = {path: NamedSharding(mesh, spec) for path, spec in SPECS.items()}
    like = {p: jax.ShapeDtypeStruct(x, jnp.float32) for p, x in LEAVES.items()}
    owners = om.owners(("fsdp", "tp"), param_specs=specs)
    tx = om.muon(0.1, placement=owners, dimension_numbers=NUMBERS)
    plan = om.sharding.plan(tx, like, specs)
    (group,) = plan.groups
    assert (group.matrices, group.each, group.shards) == (13, 2, 8)
    part = 32 * 64 // 8
    assert plan.sent == 2 * 2 * 7 * part * 4
    assert plan.least_sent == round(13 * 2 * 7 / 8 * part * 4)


@pytest.mark.parametrize("options", [{}, {"pad_to": 8}], ids=["", "pad_to"])
def test_equal_matrices_have_at_most_so_many_stacks(options):
    """Each leaf is as large as a stack of eight devices may be: 40 times 2**29."""
    tree = {str(i): (64, 2048, 4096) for i in range(40)}
    specs = dict.fromkeys(tree, P(None, "fsdp", "tp"))
    numbers = dict.fromkeys(tree, om.MatrixDimensionNumbers(1, 2))
    axes = "fsdp", "tp"
    layout = layout_of(tree, specs, numbers, axes, **options)
    assert MOST_STACKS == 16
    assert [len(g.members) for g in layout.groups.values()] == [3] * 13 + [1]
    few = dict(list(tree.items())[:MOST_STACKS])
    numbers = {path: numbers[path] for path in few}
    layout = layout_of(few, specs, numbers, axes, **options)
    assert [len(g.members) for g in layout.groups.values()] == [1] * 16


@pytest.mark.broad
@pytest.mark.parametrize("name", ["cubic", "muoneq", "racs"])
def test_fewer_stacks_are_fewer_exchanges_and_the_same_updates(name, cpus, monkeypatch):
    """Twelve leaves that each fill a stack, in twelve stacks or in four."""
    tree = normal({f"{i}/up": (8, 16, 32) for i in range(12)}, 0)
    numbers = dict.fromkeys(tree, om.MatrixDimensionNumbers(1, 2))
    leaves = tree, dict.fromkeys(tree, P(None, "fsdp", "tp")), numbers
    where = "fsdp4-tp2", "auto", cpus
    monkeypatch.setattr(Thresholds, "stack_elements", 16 * 32)
    found = {}
    for most in (12, 4):
        monkeypatch.setattr(_bundles, "MOST_STACKS", most)
        found[most], state, step = run(BUILDS[name], leaves, *where)
        assert len(state.manifest) == most
        assert collectives(step)["all-to-all"] == 2 * most
    # XLA adds up the rows of stacks of other sizes in another order. Of a rotation,
    # that rounding is amplified (``test_same_results``).
    most = 1e-6 if name == "racs" else 0
    for one, other in zip(*found.values(), strict=True):
        for path, x in one.items():
            largest = np.abs(x).max()
            np.testing.assert_allclose(other[path], x, 0, most * largest, err_msg=path)


@pytest.mark.broad
def test_state_is_carried_over_between_placements(cpus):
    """From one device to owners and back: each matrix keeps its momentum."""
    tree = normal(LEAVES, 0)
    alone = blocks(dimension_numbers=NUMBERS)
    _, state = jax.jit(alone.update)(tree, alone.init(tree), tree)
    mesh = jax.make_mesh(
        (4, 2), ("fsdp", "tp"), axis_types=(KINDS["auto"],) * 2, devices=cpus
    )
    specs = given(mesh, SPECS)
    owners = om.owners(("fsdp", "tp"), param_specs=specs)
    placed = blocks(placement=owners, dimension_numbers=NUMBERS)
    params = jax.device_put(tree, specs)
    portable = om.to_portable(state, tree)
    moved = om.from_portable(portable, placed.init(params), params)
    back = om.to_portable(moved, params)
    jax.tree.map(np.testing.assert_array_equal, back, portable)
    want, _ = jax.jit(alone.update)(tree, state, tree)
    got, _ = jax.jit(placed.update)(params, moved, params)
    for path, x in want.items():
        np.testing.assert_allclose(got[path], x, 1e-5, 1e-5, err_msg=path)
