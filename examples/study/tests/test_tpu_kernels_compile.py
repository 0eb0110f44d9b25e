"""The package's kernels, compiled for TPUs that are not there."""

import functools
import os
import re

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import optax_matrix as om
from examples.study.benchmarks import _chips, _compile, aot
from optax_matrix.linalg import devices, newton_schulz
from optax_matrix.linalg.pallas import _vmem

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        aot.compiler_is_missing(),
        reason="needs the TPU compiler: pip install '.[aot]'",
    ),
]
CHIPS = ("v5e", "v5p", "v6e")
OWN = functools.partial(newton_schulz, kernel="pallas")
OWN_F32 = functools.partial(OWN, compute_dtype=jnp.float32)
SHAPE = (4, 300, 700)
PADDED = {"bf16[4,384,768]"}


@pytest.fixture(scope="module", autouse=True)
def _quiet_compiler():
    with pytest.MonkeyPatch.context() as patch:
        for name, value in aot.ENVIRONMENT.items():
            patch.setenv(name, os.environ.get(name, value))
        yield


def mesh_of(chip, count=1):
    found = _chips.devices(chip, count)
    return jax.make_mesh((count,), ("fsdp",), (AxisType.Auto,), devices=found)


def shape_on(mesh, shape, spec=(), dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*spec)))


def kernels_in(compiled):
    """Dtypes and shapes of the results of the kernels in a program, without repeats."""
    text = compiled.as_text()
    return {*re.findall(r"(\w+\[[\d,]+\])\S* custom-call\([^\n]*tpu_custom", text)}


def kernels(f, x):
    return kernels_in(jax.jit(f).lower(x).compile())


@pytest.mark.parametrize("chip", CHIPS)
def test_the_kernels_compile(chip):
    mesh = mesh_of(chip)
    assert kernels(OWN, shape_on(mesh, SHAPE)) == PADDED
    assert kernels(OWN, shape_on(mesh, (4, 700, 300))) == PADDED
    assert kernels(OWN, shape_on(mesh, SHAPE, dtype=jnp.bfloat16)) == PADDED
    assert kernels(OWN_F32, shape_on(mesh, SHAPE)) == {"f32[4,384,768]"}
    assert kernels(OWN, shape_on(mesh, (100, 100))) == {"bf16[1,128,128]"}


@pytest.mark.parametrize("chip", CHIPS)
def test_large_matrices_compile_tile_by_tile(chip):
    x = shape_on(mesh_of(chip), (2, 4096, 4096))
    assert kernels(OWN, x) == {"bf16[2,4096,4096]"}
    assert kernels(OWN_F32, x) == {"f32[2,4096,4096]"}
    ragged = shape_on(mesh_of(chip), (5000, 20000))
    assert kernels(OWN, ragged) == {"bf16[1,5120,5120]"}


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("m", [256, 1024, 2304])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_what_is_said_to_fit_compiles(chip, m, dtype):
    mesh, dtype = mesh_of(chip), jnp.dtype(dtype)
    found = []
    see = lambda x: found.append(devices.fast_memory(x))
    jax.jit(see).trace(shape_on(mesh, (2, 2)))
    fits = lambda n: _vmem.fits(m, n, dtype, found[0])
    if not fits(m):
        pytest.skip("no wide matrix of this side fits")
    n = max(filter(fits, range(m, 2**16, 128)))
    run = functools.partial(OWN, compute_dtype=dtype)
    tile, panel = _vmem._tiles(m, n)
    assert m % tile == n % panel == 0
    name = {"bfloat16": "bf16", "float32": "f32"}[dtype.name]
    assert kernels(run, shape_on(mesh, (2, m, n))) == {f"{name}[2,{m},{n}]"}


def test_the_compiler_stays_where_nothing_was_measured():
    x = shape_on(mesh_of("v5e"), (48, 1024, 4096))
    assert not kernels(functools.partial(newton_schulz, compute_dtype="auto"), x)


def test_the_kernels_compile_under_maps_and_loops():
    x = shape_on(mesh_of("v5e"), (2, *SHAPE))
    assert kernels(jax.vmap(OWN), x) == {"bf16[8,384,768]"}
    loop = lambda x: jax.lax.scan(lambda i, y: (i, OWN(y)), 0, x)[1]
    assert kernels(loop, x) == PADDED


@pytest.mark.parametrize("shape", [(64, 128), (4096, 4096)])
def test_the_kernels_compile_under_settings_of_jax(shape):
    x = shape_on(mesh_of("v5e"), shape)
    name = "bf16[1,{},{}]".format(*shape if shape[0] > 128 else (128, 128))
    with jax.enable_x64(True), jax.default_matmul_precision("high"):
        assert kernels(functools.partial(OWN, eps=2e-7), x) == {name}
        run = functools.partial(OWN_F32, eps=2e-7)
        assert kernels(run, x) == {name.replace("bf16", "f32")}
    with jax.numpy_dtype_promotion("strict"):
        assert kernels(functools.partial(OWN, eps=3e-7), x) == {name}


def test_a_derivative_is_the_compilers():
    x = shape_on(mesh_of("v5e"), SHAPE)
    assert not kernels(jax.grad(lambda x: jnp.sum(OWN(x) ** 3)), x)


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("shape", [SHAPE[1:], (4096, 4096)])
def test_each_of_eight_devices_runs_its_own_kernels(check_vma, shape):
    mesh = mesh_of("v5e", 8)
    spec = P("fsdp")
    each = jax.shard_map(
        OWN, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=check_vma
    )
    name = "bf16[1,4096,4096]" if shape[0] == 4096 else "bf16[1,384,768]"
    assert kernels(each, shape_on(mesh, (8, *shape), ["fsdp"])) == {name}


def step(chip, count, number, recipe="muon", **options):
    """The kernels of a step on a number of 768 x 1024 matrices."""
    mesh = mesh_of(chip, count)
    spec = ["fsdp"] if count > 1 else []
    params = {f"w{i}": shape_on(mesh, (768, 1024), spec) for i in range(number)}
    specs = {name: P(*spec) for name in params}
    owners = om.owners(("fsdp",), param_specs=specs, **options)
    tx = getattr(om, recipe)(1e-3, polar=OWN, placement=owners if count > 1 else None)
    return kernels_in(_compile.traced(tx, params).lower().compile())


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("recipe", ["muon", "muoneq"])
def test_a_step_runs_the_kernels_that_its_owners_need(chip, recipe):
    assert step(chip, 1, 3, recipe) == {"bf16[3,768,1024]"}
    assert step(chip, 8, 16, recipe) == {"bf16[2,768,1024]"}


def test_a_team_leaves_what_it_shares_to_the_compiler():
    assert step("v5e", 8, 9, teams=2) == {"bf16[1,768,1024]"}
    assert not step("v5e", 8, 3, teams=2)


@pytest.mark.parametrize("loop", ["vmap", "scan"])
def test_steps_of_several_models_run_the_kernels(loop):
    mesh = mesh_of("v5e")
    tx = om.muon(1e-3, polar=OWN)
    grads = {"w": shape_on(mesh, (2, 768, 1024))}
    update = lambda g: tx.update(g, tx.init(g), g)[0]
    if loop == "vmap":
        assert kernels(jax.vmap(update), grads) == {"bf16[2,768,1024]"}
        return
    scanned = lambda g: jax.lax.scan(lambda i, g: (i, update(g)), 0, g)[1]
    assert kernels(scanned, grads) == {"bf16[1,768,1024]"}
