"""Eight-bit codes against the map written down in NumPy float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _matrices import strict
from _reference.quantization import BLOCK, blocks, dynamic_map, rounded

from optax_matrix.quantization import dequantize, quantize


def spread(*shape, seed=0):
    """Normal numbers over nine decades."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape) * 10 ** rng.uniform(-9, 0, shape)
    return x.astype(np.float32)


@functools.cache
def compiled(signed, batch_axes):
    def there_and_back(x, noise=None):
        codes, scales = quantize(
            x, BLOCK, signed=signed, batch_axes=batch_axes, noise=noise
        )
        back = dequantize(codes, scales, BLOCK, signed=signed, batch_axes=batch_axes)
        return codes, scales, back

    return jax.jit(there_and_back)


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.broad
def test_codes_are_the_map_in_order(signed):
    table = dynamic_map(signed)
    assert len(table) == 256
    codes = jnp.arange(256, dtype=jnp.uint8)
    with strict():
        got = dequantize(codes, jnp.ones(1), BLOCK, signed=signed)
    np.testing.assert_allclose(got, table, rtol=4e-7)  # A few ulp of f32.


@pytest.mark.parametrize("signed", [True, False])
def test_rounds_to_the_nearest_value_of_the_map(signed):
    x = spread(5, 300) if signed else np.abs(spread(5, 300))
    _, _, got = compiled(signed, 0)(x)
    # As near as the nearest: of two that are equally near, it may be either one.
    worse = np.abs(got - x) - np.abs(rounded(x, signed) - x)
    ulp = np.finfo(np.float32).eps * np.maximum(np.abs(x), np.abs(got))
    assert np.all(np.abs(worse) <= 4 * ulp)
    # Half a step of the decade: 0.9 / 2**i steps (half of it unsigned), i = 6 below 1;
    # at most 10^-6 / 2 of the block's largest, or the smallest value, near zero.
    unit = np.abs(blocks(x)) / np.abs(blocks(x)).max(-1, keepdims=True)
    decade = np.clip(np.ceil(np.log10(np.maximum(unit, 1e-9))), -6, 0)
    half = 0.45 * 10.0**decade / 2.0 ** (decade + 6 + (not signed))
    error = np.abs(blocks(np.asarray(got)) - blocks(x))
    # Where two decades meet, the gap is half a step of each.
    bound = np.maximum(half, 6e-7) * np.abs(blocks(x)).max(-1, keepdims=True)
    assert np.all(error <= 1.01 * bound)


def test_scales_are_the_largest_of_each_block():
    x = spread(3, 7, 300)
    codes, scales, _ = compiled(True, 1)(x)
    assert codes.dtype == jnp.uint8
    assert codes.shape == x.shape
    assert scales.shape == (3, -(-7 * 300 // BLOCK))
    np.testing.assert_array_equal(scales, np.abs(blocks(x, 1)).max(-1))


def test_rows_that_divide_into_blocks_keep_their_axes():
    x = spread(2, 3, 512)
    codes, scales, back = jax.device_get(compiled(True, 1)(x))
    assert scales.shape == (2, 3, 2)
    flat = [np.reshape(a, (2, -1)) for a in (x, codes, scales, back)]
    for x_, codes_, scales_, back_ in zip(*flat, strict=True):
        again = compiled(True, 0)(x_)
        for got, want in zip(again, (codes_, scales_, back_), strict=True):
            np.testing.assert_array_equal(got, want)


def test_no_block_reaches_from_one_matrix_into_the_next():
    x = spread(2, 5, 60)
    louder = x.copy()
    louder[0] *= 1e3
    codes, scales, _ = jax.device_get(compiled(True, 1)(x))
    codes_, scales_, _ = jax.device_get(compiled(True, 1)(louder))
    np.testing.assert_array_equal(codes[1], codes_[1])
    np.testing.assert_array_equal(scales[1], scales_[1])


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.broad
def test_zeros_and_extremes(signed):
    back = lambda x: np.asarray(compiled(signed, 0)(jnp.asarray(x, jnp.float32))[2])
    np.testing.assert_array_equal(back(np.zeros(300)), 0)
    x = np.abs(spread(300))
    x[::3] = 0
    assert np.array_equal(back(x) == 0, x == 0) or signed
    for size in (1e-20, 1.0, 1e20):
        np.testing.assert_allclose(back(size * x) / np.float32(size), back(x), 1e-5)
    assert np.isfinite(back([1e30, np.inf, 3e38])).all()
    got = back([*np.ones(BLOCK), np.nan, *np.ones(10)])
    assert np.isfinite(got[:BLOCK]).all()
    assert np.isnan(got[BLOCK:]).all()


@pytest.mark.broad
def test_second_moments_never_become_zero():
    x = np.float32([1.0, 1e-9, 1e-30, 0.0])
    _, _, got = compiled(False, 0)(x)
    np.testing.assert_array_equal(got == 0, x == 0)
    assert 3e-7 < got[2] < 4e-7  # The smallest value: 10^-6 (0.1 + 0.9 / 4).
    assert compiled(True, 0)(x)[2][2] == 0


@pytest.mark.broad
def test_stochastic_rounding_is_right_in_the_mean():
    x = jnp.full(40000, 0.123, jnp.float32).at[0].set(1)
    noise = jax.random.uniform(jax.random.key(0), x.shape)
    _, _, got = compiled(True, 0)(x, noise)
    first, rest = np.asarray(got[:BLOCK]), np.asarray(got[BLOCK:])
    assert first[0] == 1
    assert np.all(rest == np.float32(0.123))  # The largest of its block is exact.
    low, high = np.unique(first[1:])
    table = dynamic_map(True)
    assert low == pytest.approx(table[table < 0.123].max(), rel=1e-6)
    assert high == pytest.approx(table[table > 0.123].min(), rel=1e-6)
    spread_of_mean = (high - low) / 2 / np.sqrt(BLOCK - 1)
    assert abs(first[1:].mean() - 0.123) < 4 * spread_of_mean


@pytest.mark.broad
def test_float64_and_half_precision(x64):
    del x64
    x = spread(300)
    for dtype, scale_dtype in (("float64", "float64"), ("bfloat16", "float32")):
        _, scales, back = compiled(True, 0)(jnp.asarray(x, dtype))
        assert scales.dtype == back.dtype == scale_dtype
    with pytest.raises(ValueError, match="`block_size` must be a positive int"):
        quantize(jnp.ones(3), 0)


@pytest.mark.broad
@pytest.mark.daily("rows-False", "flat-True")
@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("shape", [(3, 40), (2, 8, 33)], ids=["rows", "flat"])
def test_requantized_blocks_change_only_where_numbers_do(signed, shape):
    x = spread(*shape) if signed else np.abs(spread(*shape))
    options = {"block_size": 8, "signed": signed, "batch_axes": 1}
    coded = jax.jit(functools.partial(quantize, **options))
    old = coded(jnp.asarray(-x if signed else x))
    values = jax.jit(functools.partial(dequantize, **options))(*old)
    for got, want in zip(coded(values, old=old), old, strict=True):
        np.testing.assert_array_equal(got, want)
    changed = values.at[1].multiply(0.9)
    new, fresh = coded(changed, old=old), coded(changed)
    for got, before, after in zip(new, old, fresh, strict=True):
        np.testing.assert_array_equal(got[0], before[0])
        np.testing.assert_array_equal(got[1], after[1])
