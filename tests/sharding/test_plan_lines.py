"""What a plan says of padding, of state, of replicas and in milliseconds."""

import re

import jax
import jax.numpy as jnp
import optax
import pytest
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec as P

import optax_matrix as om

MIB = 2**20
SHAPES = {f"{i}/up": (512, 1024) for i in range(6)}
SHAPES |= {f"{i}/q": (512, 512) for i in range(12)}
PARAMS = {path: jax.ShapeDtypeStruct(s, jnp.float32) for path, s in SHAPES.items()}
SIZE = (6 * 2 + 12) * 512 * 512


def planned(sizes, spec, axes=None, chip=None, **options):
    """The plan of owners on all axes, or on some."""
    mesh = AbstractMesh(tuple(sizes.values()), tuple(sizes))
    specs = NamedSharding(mesh, spec)
    owners = om.owners(axes or tuple(sizes), param_specs=specs, **options)
    return om.sharding.plan(om.muon(0.1, placement=owners), PARAMS, specs, chip=chip)


def lines(plan, start):
    return [line for line in str(plan).splitlines() if line.startswith(start)]


@pytest.mark.parametrize(
    ("sizes", "spec", "sent", "real"),
    [
        # 12 of 16 slots are of matrices, and six on other devices: all in one round
        # of the larger ones but for the two that a second round of 16 holds.
        ({"fsdp": 16}, P("fsdp"), 2 * 15 * 3 * 512 * 32, 2 * 15 * SIZE / 256),
        ({"fsdp": 32}, P("fsdp"), 2 * 31 * 1024 * 16, 2 * 31 * SIZE / 1024),
        # Nothing goes to owners, and each sends its slots to all others.
        ({"data": 32}, P(), 31 * 512 * 1024, 31 * SIZE / 32),
    ],
)
def test_padding_is_what_is_sent_of_no_matrix(sizes, spec, sent, real):
    plan = planned(sizes, spec)
    assert plan.sent == 4 * sent
    assert plan.padding == round(4 * (sent - real))
    said = f"; {plan.padding / MIB:.1f} MiB are padding"
    assert lines(plan, "sent by a device")[0].endswith(said)


def test_full_rounds_are_no_padding():
    plan = planned({"fsdp": 6}, P(None, None))
    assert (plan.padding, plan.sent) == (0, 5 * 4 * SIZE // 6)
    assert plan.state_bytes == pytest.approx(plan.even_state_bytes, rel=1e-3)


def test_state_has_padding_though_it_does_not_travel():
    plan = planned({"fsdp": 32}, P("fsdp"))
    slots = 4 * (512 * 1024 + 512 * 512)
    assert slots < plan.state_bytes < slots + 200
    assert plan.even_state_bytes == pytest.approx(4 * SIZE / 32, rel=1e-3)
    said = f"; an even split: {plan.even_state_bytes / MIB:.1f} MiB"
    assert lines(plan, "state on a device")[0].endswith(said)


def test_gradients_of_replicas_are_reduced_with_any_optimizer():
    """Twice all parameters of a shard, but for a device's own share."""
    plan = planned({"data": 4, "fsdp": 8}, P("fsdp"), "fsdp")
    assert plan.replicas == ("data",)
    assert plan.sent_for_replicas == 2 * 4 * SIZE // 8 * 3 // 4
    (said,) = lines(plan, "gradients besides")
    assert "all-reduce along 'data'" in said
    assert f" {plan.sent_for_replicas / MIB:.1f} MiB" in said
    alone = planned({"fsdp": 8}, P("fsdp"))
    assert (alone.replicas, alone.sent_for_replicas) == ((), 0)
    assert not lines(alone, "gradients besides")


def test_replicas_of_several_hosts_may_own_within_one():
    plan = planned({"data": 32}, P())
    (choice,) = [x for x in plan.others if x.cut]
    inside = planned({"node": 4, "data": 8}, P(), "data")
    assert (choice.axes, choice.cut) == (("data",), "data")
    assert (choice.sent, choice.work) == (inside.sent, inside.work)
    assert any("the eight devices of a host" in x for x in lines(plan, "owners("))
    assert not [x for x in planned({"data": 8}, P()).others if x.cut]


@pytest.mark.parametrize("sizes", [{"fsdp": 16, "tp": 2}, {"data": 32}])
def test_other_axes_are_planned_for_all_optimizers_of_a_step(sizes):
    """Of two optimizers with owners, each has a part of the matrices."""
    mesh = AbstractMesh(tuple(sizes.values()), tuple(sizes))
    specs = NamedSharding(mesh, P(*(x for x in sizes if x != "data")))
    names = {path: path.split("/")[1] for path in PARAMS}

    def both(axes):
        muon = om.muon(0.1, placement=om.owners(axes, param_specs=specs))
        tx = optax.partition({"up": muon, "q": muon}, names)
        return om.sharding.plan(tx, PARAMS, specs)

    plan = both(tuple(sizes))
    choices = [x for x in plan.others if not x.cut]
    assert len(choices) == 2 ** len(sizes) - 1
    for x in choices:
        found = both(x.axes)
        assert (x.work, x.sent) == (found.work, found.sent)
    one = planned(sizes, specs.spec)
    cuts = [[x.cut for x in each.others if x.cut] for each in (plan, one)]
    assert cuts[0] == cuts[1] == (["data"] if "data" in sizes else [])


def test_milliseconds_of_a_chip():
    """Five steps of Newton-Schulz at the peak, and bytes over the links of an axis."""
    plan = planned({"fsdp": 32}, P("fsdp"), chip="v5e", wire_dtype=jnp.bfloat16)
    busiest = 5 * (4 * 512**2 * 1024 + 2 * 512**3) / 197e12
    sent = 2 * 2 * 31 * 1024 * 16 / 90e9
    (products,), (moved,) = lines(plan, "Newton-Schulz on"), lines(plan, "exchange on")
    said = f"Newton-Schulz on v5e: at least {1e3 * busiest:.1f} ms, exposed"
    assert products.startswith(said)
    said = f"exchange on v5e: at least {1e3 * sent:.1f} ms, hidden only with"
    assert moved.startswith(said)
    others = lines(plan, "teams=") + lines(plan, "owners(")
    assert others
    assert all(re.search(r"; at least [\d.]+ \+ [\d.]+ ms", x) for x in others)
    assert " ms" not in str(planned({"fsdp": 32}, P("fsdp")))


@pytest.mark.parametrize(("devices", "rate"), [(8, 450e9), (32, 50e9)])
def test_gpus_of_several_hosts_wait_for_the_network(devices, rate):
    plan = planned({"fsdp": devices}, P("fsdp"), chip="h100")
    away = plan.sent if devices == 8 else plan.sent * (devices - 8) / (devices - 1)
    (exchange,) = lines(plan, "exchange on h100")
    said = f"exchange on h100: at least {1e3 * away / rate:.1f} ms, exposed"
    assert exchange.startswith(said)


def test_a_chip_must_be_known():
    with pytest.raises(ValueError, match=r"`chip` must be .*'v5e'"):
        planned({"fsdp": 8}, P("fsdp"), chip="v4")


@pytest.mark.parametrize(
    ("sizes", "spec", "axes", "options", "why"),
    [
        ({"fsdp": 2}, P("fsdp"), None, {}, "left over"),
        ({"fsdp": 8}, P("fsdp"), None, {"pad_to": 16}, "`pad_to`"),
        ({"fsdp": 7}, P(), None, {}, "do not divide the owners"),
        ({"fsdp": 16, "tp": 2}, P("fsdp", "tp"), "fsdp", {}, "inside matrices"),
        ({"fsdp": 1}, P("fsdp"), None, {}, "left over"),
    ],
)
def test_a_plan_says_why_there_are_no_teams(sizes, spec, axes, options, why):
    plan = planned(sizes, spec, axes, **options)
    (said,) = lines(plan, "no teams: ")
    assert said == f"no teams: {plan.no_teams}"
    assert why in said
    assert not lines(plan, "teams=")


def test_each_number_of_teams_has_its_bytes():
    """Those of the exchange, and those within the teams; 12 and 6 of 16 matrices."""
    plan = planned({"fsdp": 16}, P("fsdp"))
    assert not lines(plan, "no teams: ")
    assert [x.teams for x in plan.by_teams] == [1, 2, 4, 8]
    for found in plan.by_teams[1:]:
        (said,) = lines(plan, f"teams={found.teams}: ")
        assert f"{found.work:.2f}x; {found.sent / MIB:.1f} MiB" in said
        assert planned({"fsdp": 16}, P("fsdp"), teams=found.teams).sent == found.sent
