"""Teams of devices that compute polar factors together: as one device does."""

import dataclasses
import inspect
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _meshes import collectives, make_mesh
from _owned import assert_same_path, given, normal, on_mesh, rollout
from jax.sharding import NamedSharding, PartitionSpec as P

import optax_matrix as om
from optax_matrix._surroundings import within
from optax_matrix._surroundings.kernels import on_real_matrices
from optax_matrix.linalg import AOL, POLAR_EXPRESS, newton_schulz, polar_svd
from optax_matrix.matrices.decisions import decide, views_of
from optax_matrix.sharding import _balance
from optax_matrix.sharding._balance import with_teams
from optax_matrix.sharding._ownership import Ownership
from optax_matrix.sharding._teams import LastRound, Team, in_team

AXES = ("fsdp", "tp")


def _in_teams(kernel, x, size, cpus, kind="auto", real=None, shared=None):
    """The kernel of stacks ``(8, k, m, n)``, one for each of eight devices."""
    team = Team(AXES, 8, size)
    real = np.ones(x.shape[:2], bool) if real is None else real
    shared = x.shape[1] if shared is None else shared
    mesh = make_mesh("fsdp4-tp2", kind, cpus)

    def on_device(x, real):
        last = LastRound(team, x.shape[1], real[0, -shared:])
        with within(shared={"w": partial(in_team, last)}):
            return on_real_matrices(kernel, {"w": x[0]})["w"][None]

    run = partial(jax.shard_map, mesh=mesh, check_vma=False)
    run = jax.jit(run(on_device, in_specs=(P(AXES), P(AXES)), out_specs=P(AXES)))
    place = lambda v: jax.device_put(v, jax.NamedSharding(mesh, P(AXES)))
    return np.asarray(run(place(x), place(real)))


def _normal(*shape, dtype=np.float32):
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


def _alone(kernel, x):
    return np.asarray(kernel(jnp.asarray(x)))


@pytest.mark.quick("square")
@pytest.mark.parametrize(
    ("size", "shape"),
    [(2, (16, 5)), (4, (6, 16)), (8, (8, 8)), (4, (7, 13)), (8, (3, 2))],
    ids=["tall", "wide", "square", "odd", "fewer columns than devices"],
)
def test_a_team_computes_what_one_device_does(size, shape, cpus):
    x = _normal(8, 1, *shape)
    got = _in_teams(newton_schulz, x, size, cpus)
    np.testing.assert_allclose(got, _alone(newton_schulz, x), atol=1e-5)


def test_rows_are_scaled_in_a_team_as_alone(cpus):
    kernel = partial(newton_schulz, coefficients=AOL, steps=4, preconditioning="aol")
    x = _normal(8, 1, 6, 11)
    got = _in_teams(kernel, x, 2, cpus)
    np.testing.assert_allclose(got, _alone(kernel, x), atol=1e-5)


@pytest.mark.broad
@pytest.mark.parametrize("size", [2, 8])
def test_in_float64(size, cpus):
    with jax.enable_x64(True):
        x = _normal(8, 2, 6, 11, dtype=np.float64)
        kernel = partial(newton_schulz, coefficients=POLAR_EXPRESS, steps=6)
        got = _in_teams(kernel, x, size, cpus)
        np.testing.assert_allclose(got, _alone(kernel, x), atol=1e-12)


@pytest.mark.broad
def test_products_and_columns_in_bfloat16(cpus):
    kernel = partial(newton_schulz, compute_dtype=jnp.bfloat16)
    x = _normal(8, 1, 16, 24)
    got, alone = _in_teams(kernel, x, 4, cpus), _alone(kernel, x)
    exact = _alone(newton_schulz, x)
    assert got.dtype == np.float32
    error = lambda y: np.linalg.norm(y - exact)
    assert 1e-4 < error(got) < 1.3 * error(alone)  # It is rounded, no worse than alone.


@pytest.mark.broad
def test_a_kernel_of_our_own_means_bfloat16_in_a_team_too(cpus):
    x = _normal(8, 1, 16, 24)
    own = _in_teams(partial(newton_schulz, kernel="pallas"), x, 4, cpus)
    narrow = _in_teams(partial(newton_schulz, compute_dtype=jnp.bfloat16), x, 4, cpus)
    assert (own == narrow).all()


def test_padding_zeros_and_deficient_rank(cpus):
    x = _normal(8, 1, 4, 6)
    real = np.array([[1], [0], [1], [1], [0], [0], [0], [0]], bool)  # Nothing for two.
    x[2] = 0
    x[3, 0, 1:] = x[3, 0, 0]
    want = _alone(newton_schulz, x) * real[..., None, None]
    got = _in_teams(newton_schulz, x, 2, cpus, real=real)
    np.testing.assert_allclose(got, want, atol=1e-5)
    assert not got[2].any()
    assert not got[4:].any()


@pytest.mark.broad
@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_only_the_last_matrices_are_shared(kind, cpus):
    x = _normal(8, 3, 4, 6)
    want = _alone(newton_schulz, x)
    got = _in_teams(newton_schulz, x, 4, cpus, kind, shared=1)
    np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.broad
def test_a_kernel_without_a_form_for_teams_gets_whole_matrices(cpus):
    x = _normal(8, 1, 4, 6)
    got = _in_teams(polar_svd, x, 4, cpus)
    np.testing.assert_allclose(got, _alone(polar_svd, x), atol=1e-5)


SHAPES = {f"wide/{i}": (16, 8) for i in range(11)} | {f"up/{i}": (8, 8) for i in (0, 1)}
SHAPES |= {"layers": (4, 6, 10), "zero": (8, 12)}
MESHES = {
    "fsdp8": dict.fromkeys(SHAPES, P("fsdp")) | {"layers": P()},
    "fsdp4-tp2": dict.fromkeys(SHAPES, P("fsdp", "tp")) | {"layers": P("tp")},
}


def _trees():
    params, noise = normal(SHAPES, 0), normal(SHAPES, 1)
    for tree in (params, noise):
        tree["zero"] = np.zeros_like(tree["zero"])
    return params, noise


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "mesh_name", "kind", "teams"),
    [
        (om.muon, "fsdp4-tp2", "auto", 4),
        (om.muon, "fsdp8", "explicit", 8),
        (om.muoneq, "fsdp4-tp2", "explicit", 2),
    ],
)
def test_owners_in_teams_do_what_one_device_does(recipe, mesh_name, kind, teams, cpus):
    mesh, specs = make_mesh(mesh_name, kind, cpus), MESHES[mesh_name]
    params, noise = _trees()
    want, state, _ = rollout(recipe(0.1), params, noise)
    portable = om.to_portable(state, params)
    placement = om.owners(mesh.axis_names, param_specs=given(mesh, specs), teams=teams)
    on = partial(on_mesh, specs=specs, mesh=mesh)
    got, state, _ = rollout(recipe(0.1, placement=placement), on(params), on(noise))
    assert_same_path(got, want)
    for a, b in zip(
        jax.tree.leaves(om.to_portable(state, params)),
        jax.tree.leaves(portable),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, atol=1e-5)


def _placed(cpus, teams, shapes, **options):
    mesh = make_mesh("fsdp4-tp2", "explicit", cpus)
    specs = dict.fromkeys(shapes, P("fsdp", "tp"))
    axes = options.pop("axes", AXES)
    placement = om.owners(axes, teams=teams, **options)
    tx = om.on_matrices(om.orthogonalize(), placement=placement, probe=False)
    return tx, on_mesh(normal(shapes, 0), specs, mesh)


@pytest.mark.broad
def test_updates_are_those_of_whole_matrices(cpus):
    """Eleven matrices on eight owners: one for each, and three for two teams."""
    shapes = {f"w/{i}": (8, 16) for i in range(11)}
    tx, tree = _placed(cpus, 4, shapes)
    got, _ = jax.jit(tx.update)(tree, tx.init(tree))
    for path, x in normal(shapes, 0).items():
        np.testing.assert_allclose(got[path], _alone(newton_schulz, x), atol=1e-5)


@pytest.mark.broad
def test_a_team_splits_the_products(cpus):
    """One matrix on eight owners: each does an eighth of the operations."""
    found = {}
    for size in (1, 8):
        tx, tree = _placed(cpus, size, {"w": (128, 192)})
        compiled = jax.jit(tx.update).lower(tree, tx.init(tree)).compile()
        found[size] = compiled.cost_analysis()["flops"], collectives(compiled)
    whole, split = found[1], found[8]
    assert split[1] - whole[1] == {
        "all-to-all": 2,
        "reduce-scatter": 1,
        "all-gather": 3,
    }
    assert whole[0] / 8 <= split[0] < whole[0] / 6  # Norms are not split.


def test_padding_of_the_last_round_is_known(cpus):
    """Thirteen matrices on eight owners: one for each, and five in teams of two."""
    shapes = {f"w/{i}": (8, 16) for i in range(13)}
    specs = dict.fromkeys(shapes, NamedSharding(make_mesh("fsdp8", "auto", cpus), P()))
    leaves = {p: jax.ShapeDtypeStruct(s, jnp.float32) for p, s in shapes.items()}
    placement = om.owners("fsdp", param_specs=specs, teams=2)
    layout = placement.layout(leaves, views_of(decide(leaves)), None, {})
    ((name, rows),) = layout.manifest.items()
    each = [layout.last_rounds({name: own})[name] for own in np.split(rows, 8)]
    assert {(last.team.size, last.count, len(last.real)) for last in each} == {
        (2, 2, 1)
    }
    real = np.array([bool(last.real[0]) for last in each])
    assert sorted(real.reshape(4, 2).sum(axis=1)) == [1, 1, 1, 2]


def test_teams_of_all_owners_where_a_batch_axis_leaves_fewer():
    sizes, views = {"x": 2, "y": 4}, {}
    for name, shape in {"w": (8, 16), "layers": (2, 8, 16)}.items():
        views[name] = decide({name: np.zeros(shape, np.float32)})[name].view
    flat = Ownership(views["w"], ((), ()), ("x", "y"), sizes, 3)
    layers = Ownership(views["layers"], (("x",), (), ()), ("x", "y"), sizes, 3)
    found = with_teams([flat, layers], 8)
    assert [own.team_size for own in found] == [8, 4]
    assert [own.team_size for own in with_teams(found, 2)] == [2, 2]


def test_teams_that_do_not_divide_the_owners():
    view = decide({"w": jnp.zeros((8, 16))})["w"].view
    own = Ownership(view, ((), ()), ("x",), {"x": 12}, 5)
    assert [x.team_size for x in with_teams([own], 4)] == [4]
    with pytest.raises(ValueError, match=r"got 8 with 12 owners .* pass teams=4\."):
        with_teams([own], 8)
    complete = dataclasses.replace(own, leaves=24)
    assert [x.team_size for x in with_teams([complete], 8)] == [1]


def test_no_teams_where_mesh_axes_stay_inside_matrices(cpus):
    with pytest.raises(
        ValueError, match=r"must be 1 if mesh axes stay inside .* got 2"
    ):
        om.sharding.plan(*_placed(cpus, 2, {"w": (8, 16)}, axes="fsdp"))


@pytest.mark.parametrize("teams", [0, 3, 16, -2, 2.0, True, None, "auto", {(8, 16): 2}])
def test_wrong_teams(teams):
    with pytest.raises(ValueError, match=r"`teams` must be 1, 2, 4 or 8, .* got "):
        om.owners("fsdp", teams=teams)
    with pytest.raises(ValueError, match=r"`teams` must be 1, 2, 4 or 8, .* got "):
        om.owners.from_params({}, "fsdp", teams=teams)


def test_no_teams_with_a_fixed_order():
    with pytest.raises(ValueError, match="`teams` must be 1 with `pad_to`, got 2"):
        om.owners("fsdp", teams=2, pad_to=8)
    assert om.owners("fsdp", pad_to=8).teams == 1


def test_bytes_are_counted_for_the_kernel_as_it_is():
    options = inspect.signature(newton_schulz).parameters
    assert options["steps"].default == _balance._STEPS


@pytest.mark.daily("explicit")
@pytest.mark.broad
@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_a_sweep_by_vmap_is_its_runs(kind, cpus):
    """Of recipes in teams, from `init` on, and with as many collectives as one run."""
    shapes = {f"w/{i}": (8, 16) for i in range(11)}
    mesh = make_mesh("fsdp4-tp2", kind, cpus)
    specs = dict.fromkeys(shapes, P("fsdp", "tp"))
    placement = om.owners(AXES, param_specs=given(mesh, specs), teams=4)
    params, noise = (on_mesh(normal(shapes, i), specs, mesh) for i in (0, 1))

    def step(rate, grads):
        tx = om.muon(rate, placement=placement)
        _, state = tx.update(grads, tx.init(params), params)
        return tx.update(params, state, params)[0]

    rates = np.array([0.1, 0.3], np.float32)
    one, both = jax.jit(step), jax.jit(jax.vmap(step, (0, None)))
    got = both(rates, noise)
    for i, rate in enumerate(rates):
        for path, x in one(rate, noise).items():
            np.testing.assert_allclose(got[path][i], x, atol=1e-6)
    sent = [
        collectives(f.lower(r, noise).compile()) for f, r in ((one, 0.1), (both, rates))
    ]
    assert sent[0] == sent[1]


@pytest.mark.slow
def test_derivatives_of_a_team_are_those_of_one_device(cpus):
    """Forwards and backwards; `jax.vmap` of either is left to JAX."""
    shapes = {"w": (8, 16)}
    tx, tree = _placed(cpus, 8, shapes)
    whole, alone = om.on_matrices(om.orthogonalize()), normal(shapes, 0)
    runs = [(tx, tree), (whole, alone)]
    ends = [lambda p, tx=tx: tx.update(p, tx.init(p))[0]["w"] for tx, _ in runs]
    tangents = [jax.jvp(f, (p,), (p,))[1] for f, (_, p) in zip(ends, runs, strict=True)]
    np.testing.assert_allclose(*map(np.asarray, tangents), atol=1e-5)
    grads = [
        # JAX cannot transpose a choice by platform on a mesh without `jit`.
        jax.jit(jax.grad(lambda p, f=f: (f(p) ** 3).sum()))(p)["w"]
        for f, (_, p) in zip(ends, runs, strict=True)
    ]
    np.testing.assert_allclose(*map(np.asarray, grads), atol=1e-4)
