"""The last rounds of groups travel together: the same updates, fewer bytes."""

import contextlib
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _meshes import KINDS, collectives
from _owned import cubic, given, normal, on_mesh
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec as P

import optax_matrix as om
from examples.study.benchmarks._hlo import collectives as bytes_of
from optax_matrix.sharding import _pools

# Two, three and two matrices for eight owners.
SHAPES = {f"a/{i}": (64, 32) for i in range(2)} | {f"b/{i}": (32, 32) for i in range(3)}
SHAPES |= {f"c/{i}": (16, 64) for i in range(2)}
PARTS = {"a": 64 * 32 // 8, "b": 32 * 32 // 8, "c": 16 * 64 // 8}
ONE = {"fsdp": 8}, P("fsdp", None)
TWO = {"fsdp": 4, "tp": 2}, P("fsdp", "tp")
MIXED = {"fsdp": 4, "tp": 2}, {"a": P("fsdp", "tp"), "b": P("tp", "fsdp")}
SLICES = {"slice": 2, "fsdp": 4}, P("fsdp", None)
COPIES = {"data": 8}, P()


def make(axes, kind, devices):
    types = (KINDS[kind],) * len(axes)
    sizes = tuple(axes.values())
    return jax.make_mesh(sizes, tuple(axes), axis_types=types, devices=devices)


def specs_of(shapes, spec):
    """The spec of each leaf, which a dict has by group."""
    of = lambda path: spec.get(path[0], P("fsdp", "tp"))
    return {p: of(p) if isinstance(spec, dict) else spec for p in shapes}


def placed(case, kind, cpus, shapes, **options):
    axes, spec = case
    mesh, specs = make(axes, kind, cpus), specs_of(shapes, spec)
    options = {"param_specs": given(mesh, specs), **options}
    return mesh, specs, om.owners(tuple(axes), **options)


def planned(tx, tree, mesh, specs):
    """The bytes that a device sends."""
    shardings = {path: NamedSharding(mesh, spec) for path, spec in specs.items()}
    return om.sharding.plan(tx, tree, shardings).sent


def steps(tx, tree, mesh, specs, **extra):
    """The updates of two steps, and the program."""
    step = jax.jit(lambda g, s, p: tx.update(g, s, p, **extra))
    params = on_mesh(tree, specs, mesh)
    with jax.set_mesh(mesh) if KINDS["explicit"] in mesh.axis_types else _nothing():
        state = jax.jit(tx.init)(params)
        program = step.lower(params, state, params).compile()
        found = []
        for _ in range(2):
            args = jax.device_put((params, state, params), program.input_shardings[0])
            updates, state = program(*args)
            found.append(jax.tree.map(np.asarray, updates))
    return found, program


_nothing = contextlib.nullcontext


@contextlib.contextmanager
def apart():
    """Every group has collectives of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_pools, "pools_of", lambda *_: [])
        yield


def assert_same(one, other):
    for a, b in zip(one, other, strict=True):
        jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.daily("one-explicit")
@pytest.mark.broad
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("case", "now"),
    [
        pytest.param(ONE, {"all-to-all": 2}, id="one"),
        pytest.param(TWO, {"all-to-all": 2}, id="two"),
        pytest.param(MIXED, {"all-to-all": 2}, id="mixed"),
        pytest.param(SLICES, {"all-to-all": 2, "all-gather": 1}, id="slices"),
        pytest.param(COPIES, {"all-gather": 1}, id="copies"),
    ],
)
def test_a_pool_gives_what_its_groups_give(case, now, kind, cpus):
    """Bit for bit, and on one device to rounding."""
    tree = normal(SHAPES, 0)
    mesh, specs, owners = placed(case, kind, cpus, SHAPES)
    tx = om.on_matrices(cubic, placement=owners, probe=False)
    found, program = steps(tx, tree, mesh, specs)
    assert collectives(program) == now
    with apart():
        want, program = steps(tx, tree, mesh, specs)
        assert collectives(program) == {kind: 3 * n for kind, n in now.items()}
    assert_same(found, want)
    alone = om.on_matrices(cubic, probe=False)
    state = alone.init(tree)
    update = jax.jit(alone.update)
    for updates in found:
        want, state = update(tree, state)
        for path, x in want.items():
            np.testing.assert_allclose(updates[path], x, rtol=1e-5, atol=1e-5)


def reading(g, state, params, *, seen, **_):
    """Gradients, parameters and a statistic of two axes, each scaled."""
    new = {n: x + 0.5 * params[n] @ seen[n] for n, x in g.items()}
    return new, state


OPTIMIZERS = {
    "bf16 wire": (lambda owners: om.muoneq(0.1, placement=owners), jnp.bfloat16),
    "MultiSteps": (
        lambda owners: optax.MultiSteps(
            om.muoneq(0.1, placement=owners), 2
        ).gradient_transformation(),
        None,
    ),
    "injected": (
        lambda owners: om.transforms.inject_hyperparams(om.muoneq)(
            learning_rate=0.1, placement=owners
        ),
        None,
    ),
    "teams": (lambda owners: om.muon(0.1, placement=owners), None),
    "hyperball": (lambda owners: om.muonh(0.1, placement=owners), None),
}


@pytest.mark.daily("bf16 wire")
@pytest.mark.broad
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_whatever_is_around(name, cpus):
    tx_of, wire = OPTIMIZERS[name]
    tree = {f"{path}/kernel": x for path, x in normal(SHAPES, 0).items()}
    options = {"wire_dtype": wire} | ({"teams": 2} if name == "teams" else {})
    mesh, specs, owners = placed(TWO, "auto", cpus, tree, **options)
    tx = tx_of(owners)
    found, program = steps(tx, tree, mesh, specs)
    moved = bytes_of(program.as_text())["all-to-all"]
    with apart():
        want, program = steps(tx, tree, mesh, specs)
    assert_same(found, want)
    assert bytes_of(program.as_text())["all-to-all"].bytes > moved.bytes


@pytest.mark.broad
def test_parameters_and_statistics_travel_as_gradients_do(cpus):
    tree = normal(SHAPES, 0)
    seen = {p: np.cov(x) for p, x in tree.items()}  # (in, in) of kernels (in, out).
    seen = {p: x.astype(np.float32) for p, x in seen.items()}
    mesh, specs, owners = placed(ONE, "auto", cpus, SHAPES)
    tx = om.on_matrices(
        optax.GradientTransformationExtraArgs(lambda _: optax.EmptyState(), reading),
        statistics={"seen": ("in", "in")},
        placement=owners,
        needs_params=True,
        probe=False,
    )
    extra = {"seen": on_mesh(seen, dict.fromkeys(seen, P()), mesh)}
    found, _ = steps(tx, tree, mesh, specs, **extra)
    with apart():
        want, _ = steps(tx, tree, mesh, specs, **extra)
    assert_same(found, want)
    for path, x in tree.items():
        np.testing.assert_allclose(found[0][path], x + 0.5 * (x.T @ seen[path]).T, 1e-4)


@pytest.mark.broad
def test_a_device_sends_one_part_of_the_largest_matrix_to_each_other(cpus):
    """As planned and as compiled: 7 of 8 parts of the largest, there and back."""
    tree = normal(SHAPES, 0)
    mesh, specs, owners = placed(ONE, "auto", cpus, SHAPES)
    tx = om.on_matrices(cubic, placement=owners, probe=False)
    sent = planned(tx, tree, mesh, specs)
    assert sent == 2 * 7 * max(PARTS.values()) * 4
    _, program = steps(tx, tree, mesh, specs)
    # The text counts a device's own part, too.
    assert bytes_of(program.as_text())["all-to-all"].bytes * 7 // 8 == sent
    with apart():
        assert planned(tx, tree, mesh, specs) == 2 * 7 * sum(PARTS.values()) * 4


def test_full_rounds_are_no_padding_and_travel_apart():
    """Nine and ten matrices for eight owners: one round each, then one for both."""
    shapes = {f"a/{i}": (64, 32) for i in range(9)}
    shapes |= {f"b/{i}": (32, 32) for i in range(10)}
    mesh = AbstractMesh((8,), ("fsdp",))
    specs = dict.fromkeys(shapes, NamedSharding(mesh, P("fsdp")))
    like = {p: jax.ShapeDtypeStruct(s, jnp.float32) for p, s in shapes.items()}
    owners = om.owners("fsdp", param_specs=specs)
    tx = om.on_matrices(cubic, placement=owners, probe=False)
    sent = om.sharding.plan(tx, like, specs).sent
    assert sent == 2 * 7 * (PARTS["a"] + PARTS["b"] + PARTS["a"]) * 4


@pytest.mark.broad
def test_padding_stays_zero(cpus):
    """Owners of other groups' matrices do not keep them as their own."""
    mesh, specs, owners = placed(TWO, "auto", cpus, SHAPES)
    tx = om.on_matrices(optax.trace(0.9), placement=owners, probe=False)
    params = on_mesh(normal(SHAPES, 0), specs, mesh)
    _, state = jax.jit(tx.update)(params, jax.jit(tx.init)(params), params)
    for name, x in state.inner_state.trace.items():
        padding = (np.asarray(state.manifest[name])[:, :2] == 0xFFFFFFFF).all(1)
        sizes = np.abs(np.asarray(x)).max((1, 2))
        assert padding.any()
        assert not sizes[padding].any()
        assert sizes[~padding].all()


@pytest.mark.broad
def test_full_rounds_of_one_group_travel_with_the_pool(cpus):
    """There are never more collectives than groups have by themselves."""
    shapes = {f"a/{i}": (64, 32) for i in range(9)}
    shapes |= {f"b/{i}": (32, 32) for i in range(10)}
    tree = normal(shapes, 0)
    mesh, specs, owners = placed(TWO, "auto", cpus, shapes)
    tx = om.on_matrices(cubic, placement=owners, probe=False)
    found, program = steps(tx, tree, mesh, specs)
    with apart():
        want, before = steps(tx, tree, mesh, specs)
    assert collectives(program) == collectives(before) == {"all-to-all": 4}
    assert_same(found, want)
    sent, alone = (bytes_of(x.as_text())["all-to-all"].bytes for x in (program, before))
    # The smaller one's last round needs no room beside the larger one's.
    assert alone - sent == 2 * 8 * PARTS["b"] * 4


KERNELS = [(8, 8), (8, 16), (16, 8), (16, 16), (32, 8)]
LEAVES = [P("fsdp", None), P("tp", "fsdp"), P(None, "tp"), P()]


@pytest.mark.parametrize("seed", range(20))
def test_pools_send_no_more_and_no_owner_has_two_of_their_matrices(seed):
    rng = np.random.default_rng(seed)
    mesh = AbstractMesh((4, 2), ("fsdp", "tp"))
    shapes, specs = {}, {}
    for i, k in itertools.product(range(5), range(2)):
        spec = LEAVES[rng.integers(len(LEAVES))]
        for j in range(rng.integers(1, 12)):
            shapes[path := f"{i}/{k}/{j}"] = KERNELS[i]
            specs[path] = NamedSharding(mesh, spec)
    like = {p: jax.ShapeDtypeStruct(s, jnp.float32) for p, s in shapes.items()}
    placement = om.owners(("fsdp", "tp")[:: rng.choice([1, -1])], param_specs=specs)
    tx = om.on_matrices(cubic, placement=placement, probe=False)
    found = om.sharding.plan(tx, like, specs).sent
    with apart():
        assert found <= om.sharding.plan(tx, like, specs).sent
    layout = placement.layout(like, om.stacks.make_layout(like).views, None, {})
    exchanges = [bundle.exchange for bundle in layout.bundles]
    pools = _pools.pools_of(exchanges, [0] * len(exchanges))
    for pool in pools:
        owned = sum(x.in_last_round.astype(int) for x in pool.exchanges)
        assert len(pool.members) > 1
        assert owned.max() == 1
        assert pool.size == math.prod(pool.exchanges[0].part)
        assert len({x.axes for x in pool.exchanges}) == 1
