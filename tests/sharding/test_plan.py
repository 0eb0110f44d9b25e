"""The cost of a step, from shapes and specs alone."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from _llama import llama
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P

import optax_matrix as om
from optax_matrix.sharding import plan
from optax_matrix.sharding._planned import PlannedChoice, PlannedTeams

MESH = AbstractMesh((4, 2), ("fsdp", "tp"))
SHAPES = {f"up_{i}": (8, 16) for i in range(3)} | {"bias": (16,)}
PARAMS = {path: jax.ShapeDtypeStruct(s, jnp.float32) for path, s in SHAPES.items()}
SPECS = {p: P("fsdp", "tp") if len(s) > 1 else P("tp") for p, s in SHAPES.items()}
SHARDINGS = {path: NamedSharding(MESH, spec) for path, spec in SPECS.items()}


def _plan(axes, **options):
    placement = om.owners(axes, param_specs=SHARDINGS, **options)
    return plan(om.muon(0.1, placement=placement), PARAMS, SHARDINGS)


def test_three_matrices_on_eight_owners():
    found = _plan(("fsdp", "tp"))
    (group,) = found.groups
    counts = group.matrices, group.owners, group.shards, group.each
    assert counts == (3, 3, 8, 1)
    assert found.work == pytest.approx(8 / 3)
    # Eight parts of 8 x 16 / 8 numbers, seven of which go elsewhere, there and back.
    assert found.sent == group.sent == 2 * 7 * 16 * 4
    assert found.stack_bytes == 8 * 16 * 4
    momentum, count, manifest = 8 * 16 * 4, 4, 4 * 4
    adam = 2 * 16 * 4 // 2
    assert (
        momentum + adam < found.state_bytes < momentum + adam + 20 * (count + manifest)
    )
    # Two owners, each with four devices on one matrix: one of them has two.
    (tp,) = (x for x in found.others if x.axes == ("tp",))
    assert tp.work == pytest.approx((2 / 4) / (3 / 8))
    # Of two matrices, padding included, an owner lacks half; the same back.
    assert (tp.sent, tp.has_inside) == (2 * 2 * (8 * 16 // 2) * 4, True)
    assert tp.sent == _plan("tp").sent
    # Three matrices, an eighth of each part at home, shared by eight devices.
    assert found.least_sent == 2 * 3 * 7 * 16 * 4 // 8


def test_bytes_follow_the_dtype_of_the_wire():
    half = _plan(("fsdp", "tp"), wire_dtype=jnp.bfloat16)
    assert 2 * half.sent == _plan(("fsdp", "tp")).sent


def test_axes_inside_matrices_share_the_work_and_compute_padding():
    found = _plan("fsdp")
    (group,) = found.groups
    assert (group.owners, group.shards, group.each) == (3, 8, 1)
    assert found.work == pytest.approx((1 / 2) / (3 / 8))


def test_what_would_be_better_is_printed():
    text = str(_plan(("fsdp", "tp")))
    assert "busiest of 8 devices: 2.67x an even split" in text
    assert "sent by a device: 0.0 MiB, 2.7x the least of 0.0 MiB; 0.0 MiB" in text
    assert "owners(('fsdp',)): 1.33x; 0.0 MiB or more, 2.3x the least, if the" in text
    assert "owners(('tp',))" not in text  # It sends more, and has as much work.
    assert "better" not in text
    assert "owners(('fsdp', 'tp'))" not in text


def test_it_says_along_which_axes_only_updates_would_be_sent():
    mesh = AbstractMesh((2, 2), ("slice", "fsdp"))
    shapes = {f"up_{i}": jax.ShapeDtypeStruct((8, 16), jnp.float32) for i in range(4)}
    specs = dict.fromkeys(shapes, NamedSharding(mesh, P("fsdp")))
    tx = om.muon(0.1, placement=om.owners("fsdp", param_specs=specs))
    found = plan(tx, shapes, specs)
    assert found.replicated_axes == ("slice",)
    line = next(x for x in str(found).splitlines() if "('slice', 'fsdp')" in x)
    assert line.startswith("owners(('slice', 'fsdp')): 1.00x; ")
    assert line.endswith("; updates are gathered along 'slice'")
    assert "gathered" not in str(_plan(("fsdp", "tp")))


@pytest.mark.broad
def test_describe_says_which_owners_have_the_matrices_of_a_leaf(cpus):
    kinds = (AxisType.Explicit,) * 2
    mesh = jax.make_mesh((4, 2), ("fsdp", "tp"), kinds, devices=cpus)
    shapes = {"up": (8, 16), "layers": (5, 16, 8), "down": (16, 8), "bias": (16,)}
    specs = {"up": P("fsdp", "tp"), "layers": P(None, "fsdp", "tp"), "down": P("tp")}
    put = lambda path: jax.device_put(
        jnp.ones(shapes[path]), NamedSharding(mesh, specs.get(path, P()))
    )
    params = {path: put(path) for path in shapes}
    placement = om.owners(("fsdp", "tp"))
    text = om.describe(params, placement=placement)
    owned = {row.leaf: row.owners for row in text.rows}
    assert str(text).splitlines()[0].endswith("owners")
    assert owned.pop("bias") == ""
    assert owned["layers"].count("-") == 1  # Five owners in a row.
    tx = om.muon(0.1, placement=placement)
    init, update = jax.jit(tx.init), jax.jit(tx.update)
    for path, said in owned.items():
        grads = {p: x * (p == path) for p, x in params.items()}
        _, state = update(grads, init(params), params)
        moved = {
            mesh.devices.ravel().tolist().index(shard.device)
            for stack in jax.tree.leaves(state)
            if stack.ndim == 3
            for shard in stack.addressable_shards
            if jnp.any(shard.data != 0)
        }
        first, *last = said.removesuffix(" of 8").split("-")
        assert moved == set(range(int(first), int((last or [first])[0]) + 1))


def test_describe_without_owners_has_no_such_column():
    assert not str(om.describe(PARAMS)).splitlines()[0].endswith("owners")


SMALL, LARGE = (32, 4096, 16384, 4096), (80, 8192, 28672, 1024)
PLANS = {  # Mesh; teams: work of the busiest device, MiB that a device sends in them.
    "8.6B on 64": (SMALL, (16, 4), {1: (1.077, 0), 2: (1.0, 1152)}),
    "8.6B on 256": (SMALL, (64, 4), {1: (1.846, 0), 2: (1.231, 800), 8: (1.0, 4480)}),
    "8.6B on 1024": (
        SMALL,
        (256, 4),
        {1: (7.385, 0), 2: (3.692, 448), 8: (1.231, 1400)},
    ),
    "70B on 128": (LARGE, (32, 4), {1: (1.173, 0), 2: (1.014, 7140)}),
    "70B on 1024": (LARGE, (256, 4), {1: (3.406, 0), 4: (1.174, 4758)}),
}


def _plan_of(model, mesh, **options):
    mesh = AbstractMesh(mesh, ("fsdp", "tp"))
    kernels = llama(*model)
    sharding = lambda spec: NamedSharding(mesh, P(*spec))
    specs = {path: sharding(spec) for path, (_, spec) in kernels.items()}
    leaf = lambda shape: jax.ShapeDtypeStruct(shape, jnp.bfloat16)
    params = {path: leaf(shape) for path, (shape, _) in kernels.items()}
    placement = om.owners(("fsdp", "tp"), param_specs=specs, **options)
    return plan(om.muon(0.1, placement=placement, weight_decay=0.0), params, specs)


@pytest.mark.daily("8.6B on 64", "8.6B on 1024", "70B on 128")
@pytest.mark.broad
@pytest.mark.parametrize("case", PLANS)
def test_plans_of_large_models(case):
    model, mesh, expected = PLANS[case]
    said = {x.teams: x for x in _plan_of(model, mesh).by_teams}
    assert list(said) == [1, 2, 4, 8]
    for teams, want in expected.items():
        found = _plan_of(model, mesh, teams=teams)
        assert (found.work, found.sent) == said[teams][1:]
        rounded = found.work, found.sent_in_teams / 2**20
        assert rounded == pytest.approx(want, abs=0.001)


@pytest.mark.broad
def test_every_number_of_teams_gives_what_the_plan_said():
    said = _plan_of(SMALL, (64, 4)).by_teams
    for teams, work, sent in said:
        found = _plan_of(SMALL, (64, 4), teams=teams)
        assert (found.teams, found.work, found.sent) == (teams, work, sent)
        assert {group.team for group in found.groups} == {teams}
        assert found.by_teams == said
        printed = [x for x in str(found).splitlines() if x.startswith("teams=")]
        assert [int(x[6]) for x in printed] == [n for n in (1, 2, 4, 8) if n != teams]


def _few(count, devices, **options):
    """The plan of a number of 8 x 16 matrices on owners along one axis."""
    mesh = AbstractMesh((devices,), ("fsdp",))
    sharding = NamedSharding(mesh, P())
    shape = jax.ShapeDtypeStruct((8, 16), jnp.float32)
    params = {f"up_{i}": shape for i in range(count)}
    placement = om.owners("fsdp", param_specs=sharding, **options)
    return plan(om.muon(0.1, placement=placement), params, sharding)


def test_only_numbers_that_change_something_are_listed():
    numbers = lambda found: [x.teams for x in found.by_teams]
    assert numbers(_few(3, 4)) == [1, 2, 4]
    assert numbers(_few(3, 8)) == [1, 2, 4, 8]
    assert numbers(_few(8, 8)) == []  # No matrix is left over.
    assert numbers(_few(3, 6)) == [1, 2]  # Six owners have no teams of four.
    assert numbers(_few(3, 8, pad_to=8)) == []
    assert numbers(_plan("fsdp")) == []  # An axis stays inside the matrices.


def test_bytes_in_teams_are_those_of_the_formula():
    """One of a team of two: half of three squares for each step, half of the matrix."""
    found = _few(1, 2, teams=2)
    assert found.work == 1
    assert found.sent_in_teams == 5 * 8 * 8 * (4 + 2 + 2) // 2 + 2 * (8 * 16 * 2) // 2
    assert "of that in teams: 0.0 MiB" in str(found)
    alone, both = found.by_teams
    assert alone == PlannedTeams(1, 2.0, found.sent - found.sent_in_teams)
    assert both == PlannedTeams(2, found.work, found.sent)


def test_without_owners():
    found = plan(om.muon(0.1), PARAMS, SHARDINGS)
    assert (found.without_owners, found.groups, found.others) == (3, (), ())
    assert "3 matrices stay where they are" in str(found)


def test_a_choice_with_fewer_bytes_is_printed_though_it_has_more_work():
    params, specs, mesh = _dense()
    axes = ("fsdp", "tp"), ("fsdp",), ("tp",)
    plans = {x: _dense_plan(params, specs, x) for x in axes}
    for own, found in plans.items():
        choices = {x.axes: x for x in found.others}
        for x in axes:
            assert choices[x].sent == plans[x].sent
            assert choices[x].work == pytest.approx(plans[x].work)
        # Along `tp` alone a device has as much work as along `fsdp`, and sends more.
        assert {x.axes for x in found.better} == {*axes[:2]} - {own}
    # Twice the bytes of all parameters over the devices, but for what is there already.
    size = sum(x.size * 4 for x in params.values())
    least = plans[("tp",)].least_sent
    assert least == 2 * size / mesh.size * 63 / 64
    assert all(found.least_sent == least < found.sent for found in plans.values())


def test_least_bytes_where_devices_hold_the_same():
    """Work is shared and updates gathered, or all do the same: what sends less."""
    mesh = AbstractMesh((2, 8), ("slice", "fsdp"))
    params = {
        f"{i}/up": jax.ShapeDtypeStruct((64, 128), jnp.float32) for i in range(16)
    }
    part = 16 * 64 * 128 * 4 // 8

    def least(spec):
        specs = NamedSharding(mesh, spec)
        owners = om.owners("fsdp", param_specs=specs)
        return plan(om.muon(0.1, placement=owners), params, specs)

    found = least(P("fsdp"))
    assert found.least_sent == part * (7 / 8 + 1 / 2)
    assert {x.axes: x.sent for x in found.others}["slice", "fsdp"] == found.least_sent
    assert found.sent == part * 2 * 7 / 8
    found = least(P())
    assert found.least_sent == 0
    assert "the least" not in str(found)


def test_a_choice_that_another_one_beats_is_not_printed():
    choice = lambda axes, work, sent: PlannedChoice((axes,), work, sent, False)
    found = _plan(("fsdp", "tp"))
    best, other, worse = (
        choice("a", 1.0, 50),
        choice("b", 2.0, 10),
        choice("c", 1.0, 60),
    )
    found = dataclasses.replace(found, others=(best, worse, other))
    assert found.better == (best, other)
    same = choice("d", found.work, found.sent)
    assert dataclasses.replace(found, others=(same,)).better == ()


def _dense():
    """The kernels of a small dense model; more devices than matrices of one shape."""
    mesh = AbstractMesh((16, 4), ("fsdp", "tp"))
    shapes = {f"{i}/{n}": (512, 512) for i in range(8) for n in "qkvo"}
    shapes |= {f"{i}/{n}": (512, 1408) for i in range(8) for n in ("up", "gate")}
    params = {p: jax.ShapeDtypeStruct(s, jnp.float32) for p, s in shapes.items()}
    return params, NamedSharding(mesh, P("fsdp", "tp")), mesh


def _dense_plan(params, specs, axes):
    placement = om.owners(axes, param_specs=specs)
    return plan(om.muon(0.1, placement=placement), params, specs)
