"""Teams of devices that compute polar factors together: as one device does."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _meshes import make_mesh
from _owned import assert_same_path, given, normal, on_mesh, rollout
from jax.sharding import PartitionSpec as P

import optax_matrix as om
from optax_matrix.linalg import POLAR_EXPRESS, newton_schulz, polar_svd
from optax_matrix.padding import on_real_matrices
from optax_matrix.teams import LastRound, Team, known_teams

AXES = ("fsdp", "tp")


def _in_teams(kernel, x, size, cpus, kind="auto", real=None, shared=None):
    """The kernel of stacks ``(8, k, m, n)``, one for each of eight devices."""
    team = Team(AXES, 8, size)
    real = np.ones(x.shape[:2], bool) if real is None else real
    shared = x.shape[1] if shared is None else shared
    mesh = make_mesh("fsdp4-tp2", kind, cpus)

    def on_device(x, real):
        last = {"w": LastRound(team, x.shape[1], real[0, -shared:])}
        with known_teams(last):
            return on_real_matrices(kernel, {"w": x[0]})["w"][None]

    run = partial(jax.shard_map, mesh=mesh, check_vma=False)
    run = jax.jit(run(on_device, in_specs=(P(AXES), P(AXES)), out_specs=P(AXES)))
    place = lambda v: jax.device_put(v, jax.NamedSharding(mesh, P(AXES)))
    return np.asarray(run(place(x), place(real)))


def _normal(*shape, dtype=np.float32):
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


def _alone(kernel, x):
    return np.asarray(kernel(jnp.asarray(x)))


@pytest.mark.parametrize(
    ("size", "shape"),
    [(2, (16, 5)), (4, (6, 16)), (8, (8, 8)), (4, (7, 13)), (8, (3, 2))],
    ids=["tall", "wide", "square", "odd", "fewer columns than devices"],
)
def test_a_team_computes_what_one_device_does(size, shape, cpus):
    x = _normal(8, 1, *shape)
    got = _in_teams(newton_schulz, x, size, cpus)
    np.testing.assert_allclose(got, _alone(newton_schulz, x), atol=1e-5)


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
    error = lambda y: np.abs(y - exact).max()
    assert 1e-4 < error(got) < 2 * error(alone)  # It is rounded, no worse than alone.


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
PLAN = {(8, 16): 4, (8, 8): 8, (6, 10): 2, (8, 12): 2}


def _trees():
    params, noise = normal(SHAPES, 0), normal(SHAPES, 1)
    for tree in (params, noise):
        tree["zero"] = np.zeros_like(tree["zero"])
    return params, noise


@pytest.mark.broad
@pytest.mark.parametrize(
    ("recipe", "mesh_name", "kind"),
    [
        (om.muon, "fsdp4-tp2", "auto"),
        (om.muon, "fsdp8", "explicit"),
        (om.muoneq, "fsdp4-tp2", "explicit"),
    ],
)
def test_owners_in_teams_do_what_one_device_does(recipe, mesh_name, kind, cpus):
    mesh, specs = make_mesh(mesh_name, kind, cpus), MESHES[mesh_name]
    params, noise = _trees()
    want, state, _ = rollout(recipe(0.1), params, noise)
    portable = om.to_portable(state, params)
    placement = om.owners(mesh.axis_names, param_specs=given(mesh, specs), plan=PLAN)
    on = partial(on_mesh, specs=specs, mesh=mesh)
    got, state, _ = rollout(recipe(0.1, placement=placement), on(params), on(noise))
    assert_same_path(got, want)
    for a, b in zip(
        jax.tree.leaves(om.to_portable(state, params)),
        jax.tree.leaves(portable),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, atol=1e-5)
