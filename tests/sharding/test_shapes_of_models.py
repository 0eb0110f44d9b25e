"""Experts, scanned layers, slices, stages and uneven shapes, on eight devices.

Each step gives what one device gives, and the text of its program says along which mesh
axes anything is sent.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _meshes import KINDS
from _owned import cubic, normal
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec as P

import optax_matrix as om
from examples.study.benchmarks._hlo import along, collectives
from examples.study.benchmarks._models import Model
from optax_matrix import MatrixDimensionNumbers as Numbers
from optax_matrix._paths import named_leaves

SIDES = {"embed": 16, "mlp": 24, "kv": 8}  # Two query heads share a key head.
# Five groups of equal leaves are sent there and back: q, (k, v), o, (gate, up), down.
# What is left over of them after full rounds travels together.
CASES = {
    "experts": (
        Model(2, **SIDES, experts=8),
        {"expert": 4, "fsdp": 2},
        # Experts stay; updates of attention, which `expert` does not split, are shared.
        {"expert": 1, "fsdp": 6},
    ),
    "experts, scanned": (
        Model(2, **SIDES, experts=8, scanned=True),
        {"expert": 4, "fsdp": 2},
        {"expert": 1, "fsdp": 6},
    ),
    "scanned": (
        Model(3, **SIDES, scanned=True),
        {"fsdp": 4, "tp": 2},
        {"fsdp": 8, "tp": 8},
    ),
    "layers cut": (Model(8, **SIDES, scanned=True, cut="fsdp"), {"fsdp": 8}, {}),
    "stages": (
        Model(6, **SIDES, scanned=True, cut="stage"),
        {"stage": 2, "fsdp": 4},
        {"fsdp": 10},
    ),
    "slices": (Model(5, **SIDES), {"slice": 2, "fsdp": 4}, {"fsdp": 10}),
}


def _mesh(axes, kind, devices):
    types = (KINDS[kind],) * len(axes)
    sizes = tuple(axes.values())
    return jax.make_mesh(sizes, tuple(axes), axis_types=types, devices=devices)


def _owners(params, axes, **options):
    names = tuple(axis for axis in axes if axis != "slice")
    return om.owners.from_params(params, names, **options)


def _drawn(shapes, seed):
    leaves = {path: x.shape for path, x in named_leaves(shapes).items()}
    drawn = iter(normal(leaves, seed).values())
    return jax.tree.map(lambda _: next(drawn), shapes)


def _assert_as_on_one_device(make, placement, grads, placed):
    """Compares an update with that without a mesh; returns the compiled program."""
    alone, tx = make(None), make(placement)
    want, _ = jax.jit(alone.update)(grads, alone.init(grads), grads)
    state = tx.init(placed)
    shardings = jax.tree.map(lambda x: x.sharding, (placed, state))
    update = jax.jit(tx.update, out_shardings=shardings)
    compiled = update.lower(placed, state, placed).compile()
    got, _ = compiled(placed, state, placed)
    for path, x in named_leaves(want).items():
        found = named_leaves(got)[path]
        np.testing.assert_allclose(found, x, rtol=1e-5, atol=1e-5, err_msg=path)
    return compiled.as_text()


def _cubic(placement):
    return om.on_matrices(cubic(), placement=placement, probe=False)


@pytest.mark.broad
@pytest.mark.daily("explicit")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES)
def test_owners_give_the_same_and_send_where_they_must(case, kind, cpus):
    model, axes, expected = CASES[case]
    shapes = model.params(_mesh(axes, kind, cpus))
    grads = _drawn(shapes, 0)
    placed = jax.tree.map(lambda x, y: jax.device_put(x, y.sharding), grads, shapes)
    owners = _owners(placed, axes)
    text = _assert_as_on_one_device(_cubic, owners, grads, placed)
    assert along(text, axes) == expected


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["muon", "aro", "galore"])
def test_the_partitioner_sends_nothing_between_slices(recipe, cpus):
    model, axes, _ = CASES["slices"]
    mesh = _mesh(axes, "auto", cpus)
    shapes = model.params(mesh)
    placed = jax.tree.map(
        lambda x, y: jax.device_put(x, y.sharding), _drawn(shapes, 0), shapes
    )
    tx = getattr(om, recipe)(0.1)
    state = jax.tree.map(
        lambda x, spec: jax.device_put(x, NamedSharding(mesh, spec)),
        tx.init(placed),
        om.state_specs(tx, placed),
    )
    shardings = jax.tree.map(lambda x: x.sharding, (placed, state))
    update = jax.jit(tx.update, out_shardings=shardings)
    text = update.lower(placed, state, placed).compile().as_text()
    assert set(along(text, axes)) == {"fsdp"}


@pytest.mark.broad
@pytest.mark.parametrize(
    ("names", "kept"),
    [
        # Three matrices for eight owners: one each of the first three along `expert`,
        (("fsdp", "expert"), 1),
        # two with the first along `expert` and one with the second.
        (("expert", "fsdp"), 2),
    ],
)
def test_padding_is_not_gathered(names, kept, cpus):
    """Updates are gathered along an axis that does not split the leaves."""
    axes = {"expert": 4, "fsdp": 2}
    mesh = _mesh(axes, "explicit", cpus)
    grads = normal({f"{i}/kernel": (8, 6) for i in range(3)}, 0)
    sharding = NamedSharding(mesh, P("fsdp"))
    placed = jax.tree.map(lambda x: jax.device_put(x, sharding), grads)
    owners = om.owners(names)
    text = _assert_as_on_one_device(_cubic, owners, grads, placed)
    part = 8 * 6 * 4 // 2
    assert collectives(text)["all-gather"].bytes == 4 * kept * part
    # To the owners: a share of two, of which one goes elsewhere. Back the same, and
    # what is kept goes to three others.
    sent = om.sharding.plan(_cubic(owners), placed).sent
    assert sent == 2 * part + 3 * kept * part


WORK = {
    "64 experts": (
        Model(16, 1024, 512, 256, experts=64),
        {"expert": 8, "fsdp": 8},
    ),
    "64 experts, scanned": (
        Model(16, 1024, 512, 256, experts=64, scanned=True),
        {"expert": 8, "fsdp": 8},
    ),
    "scanned": (Model(32, 1024, 4096, 256, scanned=True), {"fsdp": 8, "tp": 4}),
    "layers cut": (
        Model(32, 1024, 4096, 256, scanned=True, cut="fsdp"),
        {"fsdp": 8, "tp": 4},
    ),
}


def _plan(model, axes, names=None):
    shapes = model.params(AbstractMesh(tuple(axes.values()), tuple(axes)))
    owners = _owners(shapes, names or axes)
    return om.sharding.plan(om.muon(0.1, placement=owners), shapes)


@pytest.mark.broad
@pytest.mark.parametrize("case", WORK)
def test_work_is_shared_out_nearly_evenly(case):
    assert 1 <= _plan(*WORK[case]).work < 1.25


def test_slices_repeat_the_work():
    model, axes = Model(8, 64, 128, 32), {"slice": 2, "fsdp": 4}
    alone = _plan(model, {"fsdp": 4})
    assert alone.work == pytest.approx(1)
    repeated = _plan(model, axes)
    assert repeated.work == pytest.approx(2)
    assert repeated.sent == alone.sent
    assert repeated.others[0][:2] == (("slice", "fsdp"), pytest.approx(1))


def test_only_matrices_that_an_axis_splits_share_its_devices():
    """Of two equal matrices on four devices, `tp` splits one among two of them.

    Padding is computed where an axis stays inside, so each device computes a whole
    matrix and half of one; an even split is half of a matrix.
    """
    mesh = AbstractMesh((2, 2), ("fsdp", "tp"))
    params, specs = (
        {"a": {"kernel": a}, "b": {"kernel": b}}
        for a, b in [
            [jax.ShapeDtypeStruct((8, 16), jnp.float32)] * 2,
            [NamedSharding(mesh, P("fsdp", "tp")), NamedSharding(mesh, P("fsdp"))],
        ]
    )
    owners = om.owners("fsdp", param_specs=specs)
    found = om.sharding.plan(om.muon(0.1, placement=owners), params, specs)
    assert {group.owners for group in found.groups} == {1}
    assert found.work == pytest.approx((1 + 1 / 2) / (2 / 4))


@pytest.mark.broad
@pytest.mark.parametrize("owned", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_heads_that_shards_divide_unevenly(kind, owned, cpus):
    """Three of twelve columns on each device, of heads with 7, 3 and 2."""
    mesh = _mesh({"fsdp": 4, "tp": 2}, kind, cpus)
    numbers = om.matrices.by_path(
        numbers={"qkv": Numbers(0, 1, output_sections=(7, 3, 2))}
    )
    grads = normal({"qkv": (16, 12)}, 0)
    sharding = NamedSharding(mesh, P("tp", "fsdp"))
    placed = {"qkv": jax.device_put(grads["qkv"], sharding)}
    make = lambda placement: om.on_matrices(
        cubic(), dimension_numbers=numbers, placement=placement, probe=False
    )
    owners = _owners(placed, {"fsdp": 4, "tp": 2}) if owned else None
    _assert_as_on_one_device(make, owners, grads, placed)


@pytest.mark.parametrize("ask", [om.state_specs, om.sharding.plan])
@pytest.mark.parametrize("owned", [True, False])
def test_uneven_specs_are_refused_by_name(ask, owned):
    mesh = AbstractMesh((4, 2), ("expert", "fsdp"))
    params = {"experts": jax.ShapeDtypeStruct((6, 8, 16), jnp.float32)}
    specs = {"experts": NamedSharding(mesh, P("expert", "fsdp"))}
    placement = om.owners(("expert", "fsdp"), param_specs=specs) if owned else None
    with pytest.raises(
        ValueError, match=r"`param_specs` of 'experts' .* 6 is not .* 4 .*'expert'"
    ):
        ask(om.muon(0.1, placement=placement), params, specs)


@pytest.mark.broad
@pytest.mark.parametrize("owned", [True, False])
def test_gradients_may_be_uneven(owned, cpus):
    """Arrays are never uneven, but within a program, under Auto axes, they may be."""
    mesh = _mesh({"expert": 4, "fsdp": 2}, "auto", cpus)
    uneven = NamedSharding(mesh, P("expert", "fsdp"))
    grads = normal({"experts": (6, 8, 12)}, 0)
    placed = jax.tree.map(lambda x: jax.device_put(x, NamedSharding(mesh, P())), grads)
    placement = _owners(placed, {"expert": 4, "fsdp": 2}) if owned else None
    alone, tx = _cubic(None), _cubic(placement)
    want, _ = jax.jit(alone.update)(grads, alone.init(grads))

    def step(grads, state):
        constrained = jax.lax.with_sharding_constraint(grads, uneven)
        return tx.update(constrained, state)[0]

    got = jax.jit(step)(placed, tx.init(placed))
    np.testing.assert_allclose(got["experts"], want["experts"], rtol=1e-5, atol=1e-5)
