"""Kernels for TPUs, interpreted, against float64 and the form of the compiler."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _symmetric_products import symmetric_products

from examples.study import tpu
from examples.study.tpu import _hbm, _tiles, _vmem
from optax_matrix.linalg import newton_schulz, pallas
from optax_matrix.linalg.coefficients import JORDAN, POLAR_EXPRESS
from optax_matrix.linalg.products import dot
from optax_matrix.linalg.quintic_steps import quintic_steps

MIB = 2**20
ROWS = tuple(JORDAN[:1]) * 3
# Tiles of `_hbm` are large; these make several of them of a small matrix.
SMALL_TILES = (128,)


def own(y, rows=ROWS, vmem=128 * MIB):
    """The iteration by kernels; tile by tile where `vmem` is 0."""
    steps = tpu.in_kernels(vmem or MIB, interpret=True)
    return pallas.newton_schulz(y, rows, steps)


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch):
    monkeypatch.setattr(_hbm, "_TILES", SMALL_TILES)


def wide(shape, dtype=jnp.bfloat16, seed=0):
    x = jax.random.normal(jax.random.key(seed), shape)
    return (x / jnp.linalg.norm(x, axis=(-2, -1), keepdims=True)).astype(dtype)


def in_float64(y, rows=ROWS):
    x = np.asarray(y.astype(jnp.float32), np.float64)
    for a, b, c in rows:
        gram = x @ x.swapaxes(-1, -2)
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


def distance(x, y):
    x, y = (np.asarray(z.astype(np.float32), np.float64) for z in (x, y))
    return np.linalg.norm(x - y) / np.linalg.norm(y)


SHAPES = [
    (64, 64),
    (3, 100),
    (600, 640),  # Three tiles a side.
    (2, 300, 700),
    (2, 3, 1, 40, 130),
    (64, 4500),  # Nine panels, of which three are multiplied at a time.
]
CASES = [(shape, vmem) for shape in SHAPES for vmem in (128 * MIB, 0)]
CASES += [
    pytest.param(shape, 128 * MIB, marks=pytest.mark.slow)
    for shape in ((2, 1100, 1300), (1024, 4096), (1300, 1900))
]


@pytest.mark.broad
@pytest.mark.parametrize(("shape", "vmem"), CASES)
def test_float32_is_the_iteration_in_float64(shape, vmem):
    y = wide(shape, jnp.float32)
    found = own(y, vmem=vmem)
    assert found.shape == shape
    assert found.dtype == jnp.float32
    assert distance(found, in_float64(y)) <= 1e-5


@pytest.mark.daily("shape0-134217728", "shape1-0", "shape4-134217728", "shape9-0")
@pytest.mark.broad
@pytest.mark.parametrize(("shape", "vmem"), CASES)
def test_bfloat16_is_as_close_to_float64_as_the_form_of_the_compiler(shape, vmem):
    y = wide(shape)
    found, theirs = own(y, vmem=vmem), quintic_steps(y, ROWS, dot)
    exact = in_float64(y)
    assert found.dtype == jnp.bfloat16
    assert distance(found, exact) <= 1.5 * distance(theirs, exact)
    assert distance(found, theirs) <= 0.04


@pytest.mark.broad
@pytest.mark.parametrize("vmem", [128 * MIB, 0])
def test_each_step_has_its_own_coefficients(vmem):
    y = wide((2, 130, 260), jnp.float32)
    assert distance(own(y, POLAR_EXPRESS, vmem), in_float64(y, POLAR_EXPRESS)) <= 1e-4


@pytest.mark.daily("bfloat16-0", "float32-134217728")
@pytest.mark.broad
@pytest.mark.parametrize("vmem", [128 * MIB, 0])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_zero_stays_zero_and_nan_stays_in_its_matrix(vmem, dtype):
    y = wide((4, 40, 130), dtype).at[1].set(0).at[2, 7, 11].set(jnp.nan)
    found = own(y, vmem=vmem)
    assert (found[1] == 0).all()
    assert jnp.isnan(found[2]).all()
    rest = jnp.array([0, 3])
    assert (found[rest] == own(y[rest], vmem=vmem)).all()
    assert own(y[:0], vmem=vmem).shape == (0, 40, 130)


@pytest.mark.daily("134217728")
@pytest.mark.broad
@pytest.mark.parametrize("vmem", [128 * MIB, 0])
def test_matrices_of_maps_and_loops_are_those_of_the_stack(vmem):
    y = wide((2, 3, 40, 130), jnp.float32)
    run = functools.partial(own, vmem=vmem)
    expected = run(y)
    assert distance(jax.vmap(run, 1, 1)(y), expected) <= 1e-6
    looped = lambda y: jax.lax.scan(lambda _, x: (None, run(x)), None, y)[1]
    assert distance(looped(y), expected) <= 1e-6
    assert distance(jax.vmap(looped, 1, 1)(y), expected) <= 1e-6


@pytest.mark.parametrize("vmem", [128 * MIB, 0])
def test_mapped_axes_join_the_stack(vmem):
    run = functools.partial(own, vmem=vmem)
    text = str(jax.make_jaxpr(jax.vmap(run))(wide((2, 3, 40, 130))))
    assert "grid=(6," in text.replace(" ", "")


@pytest.mark.broad
def test_derivatives_are_those_of_the_compiler():
    y = wide((2, 40, 130), jnp.float32)
    by_xla = lambda y: quintic_steps(y, ROWS, dot)

    def of(f):
        loss = lambda y: jnp.sum(f(y) ** 3)
        return jax.jvp(f, (y,), (y,)), jax.grad(loss)(y), jax.vmap(jax.grad(loss))(y)

    jax.tree.map(np.testing.assert_array_equal, of(own), of(by_xla))


@pytest.mark.broad
@pytest.mark.parametrize("shape", [(300, 260), (2, 1, 130, 700)])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_products_equal_plain_ones_and_are_symmetric(shape, dtype):
    options = {"vmem": 128 * MIB, "interpret": True}
    x = wide(shape, dtype)
    gram = functools.partial(_hbm.gram, **options)
    quadratic = functools.partial(_hbm.quadratic, **options)
    for ours, theirs in symmetric_products(gram, quadratic, x):
        error = jnp.abs(ours.astype(jnp.float32) - theirs).max()
        rounding = jnp.finfo(dtype).eps + 16 * jnp.finfo(jnp.float32).eps
        assert error <= rounding * jnp.abs(theirs).max()
        assert jnp.abs(ours - ours.mT).max() <= rounding * jnp.abs(theirs).max()
        below, above = ours[..., 128:, :128], ours[..., :128, 128:]
        assert (below == above.mT).all()  # A tile and its mirror.


@pytest.mark.parametrize("tiles", range(1, 9))
@pytest.mark.programs(8, "the places of tiles are computed one by one")
def test_the_triangle_has_each_lower_tile_once(tiles):
    number = _tiles.lower_tiles(tiles)
    found = {
        tuple(map(int, _tiles.lower_tile(jnp.int32(k), tiles))) for k in range(number)
    }
    assert found == {(i, j) for i in range(tiles) for j in range(i + 1)}
    assert number == len(found)


@pytest.mark.parametrize(
    ("m", "n", "dtype", "mib"),
    [
        (1024, 4096, jnp.bfloat16, 27),
        (2048, 8192, jnp.bfloat16, 89),
        (1024, 4096, jnp.float32, 49),
    ],
)
def test_what_fits(m, n, dtype, mib):
    dtype = jnp.dtype(dtype)
    assert _vmem.fits(m, n, dtype, mib * MIB)
    assert not _vmem.fits(m, n, dtype, mib * MIB - 1)
    assert not _vmem.fits(m + 1, n, dtype, mib * MIB)
    assert not _vmem.fits(m, n + 1024, dtype, mib * MIB)


def test_sides_are_padded_little():
    for m, n in itertools.product(range(129, 3000, 77), range(129, 9000, 77)):
        tile, panel = _vmem._tiles(m, n)
        assert pallas.padded(m, tile) - m < max(256, m / 4)
        assert pallas.padded(n, panel) - n < max(256, n / 8)
        assert tile % 128 == panel % 128 == 0


OWN = functools.partial(tpu.newton_schulz, interpret=True)


@pytest.mark.broad
@pytest.mark.parametrize("shape", [(260, 130), (2, 130, 260)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_newton_schulz_transposes_and_scales(shape, dtype):
    x = 1e3 * wide(shape, jnp.float32)
    found = OWN(x, compute_dtype=dtype)
    assert found.dtype == jnp.float32
    assert distance(found, newton_schulz(x)) <= (1e-5 if dtype == "float32" else 0.03)


@pytest.mark.broad
@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("precision", ["high", "highest", "default", None])
def test_settings_of_jax_do_not_change_the_kernel(x64, precision):
    x = wide((130, 260), jnp.float32)
    expected = OWN(x)
    with jax.enable_x64(x64), jax.default_matmul_precision(precision):
        jaxpr = str(jax.make_jaxpr(OWN)(x))
        found = OWN(x)
    assert (found == expected).all()
    kernel = jaxpr[jaxpr.index("pallas_call") :]
    assert "i64" not in kernel[: kernel.index("out_avals")]


def test_other_dtypes_and_older_tpus_are_refused(monkeypatch):
    with pytest.raises(ValueError, match="`compute_dtype` must be bfloat16 or float32"):
        OWN(jnp.ones((2, 2)), compute_dtype=jnp.float16)
    monkeypatch.setattr(tpu, "fast_memory", lambda _: 0)
    with pytest.raises(ValueError, match="`x` must be on TPUs from v4"):
        OWN(jnp.ones((2, 2)))


@pytest.mark.parametrize(
    ("dtype", "asked", "passes"),
    [
        (jnp.bfloat16, "highest", "DEFAULT"),
        (jnp.float32, None, "DEFAULT"),
        (jnp.float32, "bfloat16", "DEFAULT"),
        (jnp.float32, "high", "HIGHEST"),
        (jnp.float32, "highest", "HIGHEST"),
    ],
)
def test_precision_of_the_products_in_a_kernel(dtype, asked, passes):
    x = np.ones((128, 128), dtype)
    with jax.default_matmul_precision(asked):
        text = str(jax.make_jaxpr(lambda x: _tiles.dot(x, x))(x))
    assert f"Precision.{passes}" in text or passes in text


def test_fast_memory_is_what_jax_says():
    pltpu = pytest.importorskip("jax.experimental.pallas.tpu")
    if not hasattr(pltpu, "get_tpu_info_for_chip"):
        pytest.skip("this JAX tells it of the present device only")
    from jax._src.pallas.mosaic import tpu_info

    for kind in ("TPU v4", "TPU v5 lite", "TPU v5", "TPU v6 lite", "TPU7x"):
        chip = tpu_info.chip_version_from_device_kind(kind)
        known = pltpu.get_tpu_info_for_chip(chip, 1).vmem_capacity_bytes
        assert tpu.memory_of(kind) * MIB == known, kind
    assert math.prod(map(tpu.memory_of, ("TPU v2", "TPU v3"))) == 0
