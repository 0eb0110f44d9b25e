"""The package's kernels, compiled for GPUs that are not there."""

import functools
import re

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import optax_matrix as om
from examples.study.benchmarks import _chips, _compile, aot
from optax_matrix.linalg import newton_schulz

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        aot.compiler_is_missing("h200"),
        reason="needs the CUDA compiler: pip install '.[aot-cuda]'",
    ),
]
PLAIN = functools.partial(newton_schulz, compute_dtype=jnp.bfloat16)
OWN = functools.partial(PLAIN, kernel="pallas")
SHAPE = (36, 768, 1024)


def mesh_of(chip, count=1):
    found = _chips.devices(chip, count)
    return jax.make_mesh((count,), ("fsdp",), (AxisType.Auto,), devices=found)


def shape_on(mesh, shape, spec=()):
    return jax.ShapeDtypeStruct(
        shape, jnp.float32, sharding=NamedSharding(mesh, P(*spec))
    )


def kernels_in(compiled):
    """Shapes of the results of the kernels in a compiled program, without repeats."""
    calls = re.findall(
        r"bf16\[([\d,]+)\]\S* custom-call\([^\n]*mosaic_gpu", compiled.as_text()
    )
    return {tuple(map(int, call.split(","))) for call in calls}


def compiled(f, x):
    return jax.jit(f).lower(x).compile()


@pytest.mark.parametrize("chip", ["h100", "h200"])
def test_the_kernels_compile(chip):
    x = shape_on(mesh_of(chip), SHAPE)
    assert kernels_in(compiled(OWN, x)) == {(36, 768, 768)}
    assert kernels_in(compiled(PLAIN, x)) == {(36, 768, 768)}


def test_a_small_stack_stays_with_the_compiler():
    x = shape_on(mesh_of("h200"), (35, 768, 1024))
    assert not kernels_in(compiled(PLAIN, x))


def test_another_gpu_has_no_kernel():
    x = shape_on(mesh_of("t4"), SHAPE)
    assert not kernels_in(compiled(PLAIN, x))
    with pytest.raises(ValueError, match="'pallas' on Tesla T4"):
        compiled(OWN, x)


def test_mapped_axes_join_the_stack():
    x = shape_on(mesh_of("h200"), (2, *SHAPE))
    assert kernels_in(compiled(jax.vmap(PLAIN), x)) == {(72, 768, 768)}


def test_the_kernels_compile_in_a_loop():
    x = shape_on(mesh_of("h200"), (2, *SHAPE))
    loop = lambda x: jax.lax.scan(lambda i, y: (i, PLAIN(y)), 0, x)[1]
    assert kernels_in(compiled(loop, x)) == {(36, 768, 768)}


def test_a_derivative_is_the_compilers():
    x = shape_on(mesh_of("h200"), SHAPE)
    loss = lambda x: jnp.sum(OWN(x) ** 3)
    assert not kernels_in(compiled(jax.grad(loss), x))


def test_each_of_eight_devices_runs_its_own_kernels():
    mesh = mesh_of("h200", 8)
    x = shape_on(mesh, (8 * 36, 768, 1024), ["fsdp"])
    assert not kernels_in(compiled(PLAIN, x))
    each = jax.shard_map(PLAIN, mesh=mesh, in_specs=P("fsdp"), out_specs=P("fsdp"))
    assert kernels_in(compiled(each, x)) == {(36, 768, 768)}


def step(chip, count, number, placement=lambda _: None):
    """The kernels of a step of `muoneq` on a number of 768 x 768 matrices."""
    mesh = mesh_of(chip, count)
    spec = ["fsdp"] if count > 1 else []
    params = {f"w{i}": shape_on(mesh, (768, 768), spec) for i in range(number)}
    tx = om.muoneq(1e-3, placement=placement({name: P(*spec) for name in params}))
    return kernels_in(_compile.traced(tx, params).lower().compile())


@pytest.mark.parametrize("chip", ["h100", "h200"])
def test_a_step_of_muoneq_takes_the_kernels(chip):
    assert step(chip, 1, 48) == {(48, 768, 768)}
    assert not step(chip, 1, 12)


def test_owners_take_the_kernels():
    owners = lambda specs: om.owners(("fsdp",), param_specs=specs)
    assert step("h200", 8, 8 * 36, owners) == {(36, 768, 768)}
