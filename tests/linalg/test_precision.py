"""What each policy runs on each platform, and where that is decided."""

import functools
import inspect
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _matrices import gaussian, ones, strict
from jax.sharding import (
    AbstractDevice,
    AbstractMesh,
    AxisType,
    NamedSharding,
    PartitionSpec as P,
)

import optax_matrix as om
from optax_matrix import linalg
from optax_matrix.linalg import devices
from optax_matrix.linalg.precision import Products, products_of, using
from optax_matrix.linalg.products import full_dot

CLASSES = ("project", "statistics", "bases", "roots")
TABLE = {  # As the docstring of the module has it, in the order of the classes.
    ("default", "cuda"): ("bf16 x3", "bf16 x3", "tf32 x3", "tf32 x3"),
    ("default", "tpu"): ("HIGH", "HIGH", "HIGH", "HIGHEST"),
    ("fast", "cuda"): ("tf32", "tf32", "tf32 x3", "tf32 x3"),
    ("fast", "tpu"): ("HIGH", "DEFAULT", "HIGH", "HIGHEST"),
    **{
        (policy, platform): ("HIGHEST",) * 4
        for policy in ("default", "fast")
        for platform in ("cpu", "rocm")
    },
    **{("exact", p): ("HIGHEST",) * 4 for p in ("cpu", "cuda", "rocm", "tpu")},
}


def lowered(f, *xs, platform, policy="exact"):
    with using(policy):
        traced = jax.jit(lambda *xs: f(*xs)).trace(*xs)
    return traced.lower(lowering_platforms=(platform,)).as_text()


def precisions(text):
    """The precision of every product in a lowered program."""
    found = []
    for line in text.splitlines():
        if "dot_general" not in line:
            continue
        if "algorithm" in line:
            kind = line.split("lhs_precision_type = ")[1].split(",")[0]
            three = " x3" * ("num_primitive_operations = 3" in line)
            found.append(kind + three)
        elif "precision" in line:
            found.append(line.split("precision = [")[1].split(",")[0])
        else:
            found.append("DEFAULT")
    return found


@pytest.mark.parametrize("side", [8, 600])
@pytest.mark.parametrize(("policy", "platform"), TABLE)
def test_the_product_of_each_class_on_each_platform(policy, platform, side):
    x = jax.ShapeDtypeStruct((side, side), jnp.float32)
    products = products_of(policy)
    for name, wanted in zip(CLASSES, TABLE[policy, platform], strict=True):
        text = lowered(getattr(products, name), x, x, platform=platform)
        assert precisions(text) == [wanted], name


@pytest.mark.broad
def test_many_columns_are_made_orthonormal_in_float32_on_a_tpu():
    def found(n, platform):
        x = jax.ShapeDtypeStruct((n, n), jnp.float32)
        options = {"platform": platform, "policy": "default"}
        return set(precisions(lowered(linalg.cholesky_qr, x, **options)))

    assert found(2048, "tpu") == {"HIGH"}
    assert found(2050, "tpu") == {"HIGHEST"}
    assert found(2050, "cuda") == {"tf32 x3"}


OLD = [
    *("Tesla T4", "Tesla V100-SXM2-16GB", "Tesla P100-PCIE-16GB", "NVIDIA TITAN RTX"),
    *("Quadro RTX 6000", "NVIDIA GeForce RTX 2080 Ti", "NVIDIA GeForce GTX 1660"),
    *("NVIDIA T1000", "NVIDIA TITAN V"),
]
NEW = [
    *("NVIDIA A100-SXM4-40GB", "NVIDIA H100 80GB HBM3", "NVIDIA L4", "NVIDIA A10G"),
    *("NVIDIA GeForce RTX 3090", "NVIDIA RTX A4000", "NVIDIA GH200 480GB"),
    *("NVIDIA B200", "NVIDIA RTX 6000 Ada Generation", "NVIDIA GeForce MX570"),
    *("TPU v5 lite", "cpu", "AMD Instinct MI300X"),
]


def on(kind, axis_type=AxisType.Auto):
    """Matrices on a mesh of devices of a kind."""
    known = inspect.signature(AbstractDevice).parameters  # Others in JAX 0.8.
    values = {"device_kind": kind, "num_cores": 1, "platform": "?"}
    device = AbstractDevice(**{n: x for n, x in values.items() if n in known})
    mesh = AbstractMesh((2,), ("x",), axis_types=(axis_type,), abstract_device=device)
    return jax.ShapeDtypeStruct((8, 8), jnp.float32, sharding=NamedSharding(mesh, P()))


@pytest.mark.daily("AxisType.Auto", "Tesla T4")
@pytest.mark.quick("Tesla T4")
@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("kind", [*OLD, *NEW])
def test_cuda_devices_without_tf32_are_exact(kind, axis_type):
    x = on(kind, axis_type)
    dot = products_of("default").project
    wanted = "HIGHEST" if kind in OLD else "bf16 x3"
    assert precisions(lowered(dot, x, x, platform="cuda")) == [wanted]
    polar = functools.partial(linalg.newton_schulz, compute_dtype="auto")
    assert ("bf16" in lowered(polar, x, platform="cuda")) is (kind not in OLD)


@pytest.mark.parametrize(("capability", "narrow"), [("7.5", False), ("8.0", True)])
def test_without_a_mesh_the_default_devices_decide(monkeypatch, capability, narrow):
    device = types.SimpleNamespace(device_kind="?", compute_capability=capability)
    monkeypatch.setattr(devices.jax, "local_devices", lambda: [device])
    assert devices.has_narrow_products(jax.device_put(ones(2, 2))) is narrow


@pytest.mark.parametrize("policy", ["default", "fast", "exact"])
def test_float64_stays_exact(policy):
    with jax.enable_x64(True):
        x = jax.ShapeDtypeStruct((8, 8), jnp.float64)
        for name in CLASSES:
            dot = getattr(products_of(policy), name)
            for platform in ("cuda", "tpu"):
                assert precisions(lowered(dot, x, x, platform=platform)) == ["HIGHEST"]


@pytest.mark.broad
@pytest.mark.daily("fast")
@pytest.mark.parametrize("policy", ["default", "fast"])
def test_on_a_cpu_every_policy_is_exact_to_the_bit(policy, cpus):
    x, y = (jnp.asarray(gaussian(4, 8, 8, seed=s), jnp.float32) for s in (0, 1))
    mesh = jax.sharding.Mesh(np.array(cpus[:4]), ("d",))
    over = functools.partial(
        jax.shard_map, mesh=mesh, in_specs=P("d"), out_specs=P("d")
    )
    total = lambda dot: lambda x, y: jnp.sum(jnp.sin(dot(x, y)))
    ways = {
        "eager": lambda dot: dot,
        "jit": jax.jit,
        "vmap": jax.vmap,
        "grad": lambda dot: jax.grad(total(dot)),
        "grad of both": lambda dot: jax.grad(total(lambda x, y: dot(dot(x, x), x + y))),
        "jvp": lambda dot: lambda x, y: jax.jvp(lambda x: dot(x, dot(y, x)), [x], [y]),
        "shard_map": over,
        "loop": lambda dot: (
            lambda x, y: jax.lax.fori_loop(0, 3, lambda _, x: dot(x, y), x)
        ),
    }
    for name in CLASSES:
        dot = getattr(products_of(policy), name)
        for way, run in ways.items():
            ours, exact = run(dot)(x, y), run(full_dot)(x, y)
            # JAX adds up the cotangents of x in an order of its own.
            error = 1e-6 * np.max(np.abs(exact)) if way == "grad of both" else 0
            equal = functools.partial(np.testing.assert_allclose, rtol=0, atol=error)
            jax.tree.map(functools.partial(equal, err_msg=f"{name} {way}"), ours, exact)


def test_export_for_one_platform_at_a_time():
    x = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    export = jax.export.export
    dot = jax.jit(products_of("default").roots)
    for platform in ("cpu", "cuda", "tpu"):
        assert export(dot, platforms=[platform])(x, x).platforms == (platform,)
    with pytest.raises(ValueError, match="dot_general"):
        export(dot, platforms=["cpu", "cuda"])(x, x)


@pytest.mark.broad
def test_derivatives_of_kernels_with_products_of_a_policy():
    x = jnp.asarray(gaussian(6, 4), jnp.float32)
    gradient = jax.grad(lambda x: jnp.sum(linalg.cholesky_qr(x) ** 3))
    with using("default"):
        ours = gradient(x)
    np.testing.assert_array_equal(ours, gradient(x))


KERNELS = (linalg.cholesky_qr, linalg.polar_qr, linalg.cayley, linalg.newton_schulz)


@pytest.mark.parametrize("f", KERNELS)
def test_every_kernel_obeys_the_policy_of_its_trace(f):
    """Also where JAX keeps a trace of the same shapes under another policy."""
    x = jax.ShapeDtypeStruct((1, 8, 8), jnp.float32)
    exact = lowered(f, x, platform="cuda")
    ours = lowered(f, x, platform="cuda", policy="default")
    assert "HIGHEST" not in precisions(ours)
    assert lowered(f, x, platform="cuda") == exact != ours


def test_derivatives_obey_the_policy_of_the_value():
    """JAX traces the rule of a derivative later, outside of the policy."""
    x = jax.ShapeDtypeStruct((1, 8, 8), jnp.float32)

    def value(x):
        with using("default"):
            return jnp.sum(linalg.polar_qr(x) ** 3)

    text = lowered(jax.value_and_grad(jax.jit(value)), x, platform="cuda")
    assert "tf32 x3" in precisions(text)


def test_a_users_options_stay():
    half = functools.partial(linalg.newton_schulz, compute_dtype=jnp.float16)
    x = jax.ShapeDtypeStruct((4, 64, 96), jnp.float32)
    assert "bf16" not in lowered(half, x, platform="cuda", policy="default")


@pytest.mark.parametrize("f", [linalg.newton_schulz, linalg.gram_newton_schulz])
def test_newton_schulz_has_narrow_factors_on_accelerators(f):
    x = jax.ShapeDtypeStruct((4, 64, 96), jnp.float32)
    narrow = f is linalg.newton_schulz  # The Gram form is unsafe in bfloat16.
    options = {"policy": "default"}
    for platform in ("cuda", "tpu"):
        assert ("bf16" in lowered(f, x, platform=platform, **options)) is narrow
    for platform in ("cpu", "rocm"):
        assert "bf16" not in lowered(f, x, platform=platform, **options)


@pytest.mark.broad
@pytest.mark.parametrize("shape", [(4, 64, 200), (3, 8, 8), (5, 130, 64)])
def test_on_a_cpu_automatic_factors_change_no_bit(shape):
    x = jnp.asarray(gaussian(*shape), jnp.float32)
    with strict():
        ours = linalg.newton_schulz(x, compute_dtype="auto")
    np.testing.assert_array_equal(ours, linalg.newton_schulz(x))


def test_equal_names_have_equal_products():
    assert products_of("default") is products_of("default")
    assert hash(products_of("fast")) != hash(products_of("default"))
    mine = Products(project=lambda x, y: x @ y)
    assert products_of(mine) is mine


@pytest.mark.parametrize("value", ["half", None, 3])
def test_other_words_are_refused(value):
    with pytest.raises(ValueError, match="`precision` must be"):
        om.on_matrices(om.equilibrate(linalg.sinkhorn), precision=value)
