"""Which stacks `newton_schulz` gives to the kernels, by shape, dtype and devices."""

import functools
import inspect
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import (
    AbstractDevice,
    AbstractMesh,
    AxisType,
    NamedSharding,
    PartitionSpec as P,
)

from optax_matrix.linalg import devices, newton_schulz
from optax_matrix.linalg.pallas import _choice, _hopper

HOPPER = ("NVIDIA H200", "NVIDIA H100 80GB HBM3", "NVIDIA GH200 480GB", "NVIDIA H20")
OTHER = ("NVIDIA B200", "NVIDIA A100-SXM4-80GB", "NVIDIA RTX PRO 6000", "Tesla T4")
BF16, F32 = jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float32)
LARGE = (36, 768, 3072)


@pytest.fixture
def kernels(monkeypatch):
    """Kernels that are traced, on every JAX that has their interface."""
    mosaic = pytest.importorskip("jax.experimental.pallas.mosaic_gpu")
    if "out_type" not in inspect.signature(mosaic.kernel).parameters:
        pytest.skip("this JAX lacks the interface of the kernels")
    monkeypatch.setattr(_hopper, "is_in_this_jax", lambda: True)


has_kernels = pytest.mark.usefixtures("kernels")


def on(kind, shape=LARGE, size=1, axis_type=AxisType.Auto, spec=()):
    keywords = {"num_cores": 114, "platform": "gpu"}
    known = AbstractDevice.__dataclass_fields__
    device = AbstractDevice(kind, **{k: v for k, v in keywords.items() if k in known})
    mesh = AbstractMesh(
        (size,), ("x",), axis_types=(axis_type,), abstract_device=device
    )
    sharding = NamedSharding(mesh, P(*spec))
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)


def programs(x, **options):
    """Names of the primitives in a trace of `newton_schulz`."""
    run = functools.partial(newton_schulz, **{"compute_dtype": BF16} | options)
    return str(jax.jit(run).trace(x).jaxpr)


def takes_kernel(x, **options):
    return "mpmd_map" in programs(x, **options)


@has_kernels
@pytest.mark.parametrize("kind", HOPPER)
def test_auto_takes_the_kernels_on_hopper(kind):
    assert takes_kernel(on(kind))
    assert takes_kernel(on(kind), compute_dtype="auto")
    assert not takes_kernel(on(kind), kernel="xla")


@pytest.mark.parametrize("kind", [*OTHER, "TPU v5e", "cpu"])
def test_auto_leaves_other_devices_to_the_compiler(kind):
    assert programs(on(kind)) == programs(on(kind), kernel="xla")


@pytest.mark.parametrize("options", [{"compute_dtype": None}, {"compute_dtype": F32}])
def test_auto_leaves_float32_to_the_compiler(options):
    x = on("NVIDIA H200")
    assert programs(x, **options) == programs(x, kernel="xla", **options)


@pytest.mark.parametrize(
    "shape", [*_choice.MEASURED, (9, 6, 768, 768), (36, 3072, 768)]
)
def test_the_rule_takes_what_was_measured(shape):
    *batch, short, long = shape
    assert _choice.is_as_measured(
        functools.reduce(int.__mul__, batch), *sorted((short, long))
    )


@pytest.mark.parametrize(
    "shape",
    [(35, 768, 768), (200, 512, 512), (99, 800, 800), (99, 768, 800), (1, 4096, 4096)],
)
def test_the_rule_leaves_small_narrow_and_ragged_stacks(shape):
    assert not _choice.is_as_measured(*shape)


def test_every_measured_stack_gained():
    assert all(own < xla for xla, own in _choice.MEASURED.values())


@has_kernels
@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
def test_auto_leaves_stacks_on_several_devices_to_the_compiler(axis_type):
    x = on("NVIDIA H200", size=8, axis_type=axis_type, shape=(64, 768, 768))
    assert programs(x) == programs(x, kernel="xla")
    sharded = jax.shard_map(
        functools.partial(newton_schulz, compute_dtype=BF16),
        mesh=x.sharding.mesh,
        in_specs=P(),
        out_specs=P(),
    )
    assert "mpmd_map" in str(jax.jit(sharded).trace(x).jaxpr)


@has_kernels
@pytest.mark.parametrize(("count", "taken"), [(1, True), (2, False)])
def test_without_a_mesh_the_default_devices_decide(monkeypatch, count, taken):
    device = types.SimpleNamespace(
        device_kind="?", compute_capability="9.0", core_count=78
    )
    monkeypatch.setattr(devices.jax, "local_devices", lambda: [device] * count)
    monkeypatch.setattr(devices.jax, "device_count", lambda: count)
    x = jax.ShapeDtypeStruct(LARGE, jnp.float32)
    # Another function at every call, since traces are kept.
    run = lambda x: newton_schulz(x, compute_dtype=BF16)
    assert ("mpmd_map" in str(jax.make_jaxpr(run)(x))) is taken
    assert devices.processors(jax.device_put(np.ones(2)), 132) == 78


@pytest.mark.parametrize("kind", [*OTHER, "TPU v3", "TPU v5 lite"])
def test_another_device_is_refused_by_name(kind):
    with pytest.raises(ValueError, match=f"'pallas' on {kind}"):
        programs(on(kind), kernel="pallas")


@has_kernels
def test_the_grid_is_as_large_as_the_device():
    found = []
    see = lambda x: found.append(devices.processors(x, 132))
    jax.jit(see).trace(on("NVIDIA H100 PCIe"))
    see(jax.device_put(np.ones(2)))
    assert found == [114, 132]


def test_a_jax_without_the_interface_has_no_kernels(monkeypatch):
    monkeypatch.setattr(_hopper, "is_in_this_jax", lambda: False)
    x = on("NVIDIA H200")
    with pytest.raises(ValueError, match="version of JAX"):
        programs(x, kernel="pallas", eps=2e-7)
    assert programs(x, eps=2e-7) == programs(x, kernel="xla", eps=2e-7)


@pytest.mark.parametrize("kind", ["NVIDIA H200", "cpu"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_dtype_without_a_kernel_is_refused(kind, dtype):
    with pytest.raises(ValueError, match="must be bfloat16, float16 or None"):
        programs(on(kind), kernel="pallas", compute_dtype=jnp.dtype(dtype))


@has_kernels
@pytest.mark.broad
@pytest.mark.parametrize("kernel", ["auto", "pallas"])
def test_derivatives_are_those_of_the_compiler(monkeypatch, kernel):
    choose = lambda *xs, cuda=None, default, **_: (cuda or default)(*xs)
    monkeypatch.setattr(jax.lax, "platform_dependent", choose)
    monkeypatch.setattr(devices, "are_hopper", lambda _: True)
    monkeypatch.setattr(devices, "is_on_one_device", lambda _: True)
    monkeypatch.setattr(_choice, "is_as_measured", lambda *_: True)
    x = jax.random.normal(jax.random.key(0), (2, 8, 4))

    def of(kernel):
        f = lambda x: newton_schulz(x, compute_dtype=BF16, kernel=kernel)
        assert ("mpmd_map" in str(jax.make_jaxpr(f)(x))) is (kernel != "xla")
        loss = lambda x: jnp.sum(f(x) ** 3)
        return jax.jvp(f, (x,), (x,)), jax.grad(loss)(x), jax.vmap(jax.grad(loss))(x)

    jax.tree.map(np.testing.assert_array_equal, of(kernel), of("xla"))


def test_the_derivative_is_refused_like_the_value():
    own = lambda x: newton_schulz(x, kernel="pallas").sum()
    with pytest.raises(ValueError, match=r"on cpu|version of JAX"):
        jax.grad(own)(np.ones((2, 2), np.float32))
