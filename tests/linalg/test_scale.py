import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _matrices import gaussian, strict

from optax_matrix import linalg
from optax_matrix.linalg import _equilibrate, scale as module
from optax_matrix.linalg.scale import (
    is_some,
    is_usable,
    squares_in_one_reading,
    squares_of,
    unit_peak,
    work_dtype,
)

peaks = jax.jit(unit_peak)
in_one_reading = jax.jit(squares_in_one_reading, static_argnums=1)


@pytest.mark.parametrize(
    ("given", "expected"),
    [("bfloat16", "float32"), ("float16", "float32"), ("float32", "float32")],
)
def test_work_dtype_is_at_least_float32(given, expected):
    assert work_dtype(jnp.dtype(given)) == jnp.dtype(expected)


def test_work_dtype_keeps_float64():
    with jax.enable_x64(True):
        assert work_dtype(jnp.float64) == jnp.float64


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1.0, 1e20, 1e30])
def test_unit_peak_is_exact_up_to_rounding(scale):
    x = np.float32(gaussian(2, 4, 5) * scale)
    with strict():
        y, peak = map(np.asarray, peaks(x))
    # XLA divides by multiplying with a reciprocal: one unit in the last place.
    np.testing.assert_allclose(np.abs(y).max(axis=(-2, -1)), 1.0, rtol=2e-7)
    np.testing.assert_allclose(y * peak, x, rtol=2e-7)


@pytest.mark.parametrize("value", [0.0, 1e-40], ids=["zero", "subnormal"])
def test_unit_peak_leaves_nothing_alone(value):
    y, peak = peaks(np.full((3, 2), value, np.float32))
    np.testing.assert_allclose(y, value, atol=1e-38)
    np.testing.assert_array_equal(peak, 1.0)


@pytest.mark.broad
def test_unit_peak_shows_nan_and_infinity():
    x = np.float32([[[1.0, np.nan]], [[1.0, np.inf]], [[1.0, 2.0]]])
    y = np.asarray(peaks(x)[0])
    assert np.isnan(y[0]).any()
    assert np.isnan(y[1]).any()
    np.testing.assert_array_equal(y[2], [[0.5, 1.0]])


@pytest.mark.parametrize("axis", [-1, -2, (-2, -1)])
def test_squares_in_one_reading_are_those_by_the_peak(axis):
    scales = [1e-36, 1e-20, 1e-6, 1e-5, 0.1, 1e6, 1e20, 1e36, 0.0]
    x = np.asarray(gaussian(9, 4, 5) * np.array(scales)[:, None, None], np.float32)
    want = np.sqrt(np.sum(np.float64(x) ** 2, axis, keepdims=True))
    by_the_peak = jax.jit(lambda x: squares_of(x, unit_peak(x)[1], axis))
    for squares, divisor in by_the_peak(x), in_one_reading(x, axis):
        assert np.isfinite(squares).all()
        np.testing.assert_allclose(divisor * np.sqrt(squares), want, rtol=1e-6)


def test_squares_in_one_reading_show_nan_and_infinity():
    x = np.float32([[[1.0, np.nan]], [[1.0, np.inf]], [[3.0, 4.0]]])
    squares, divisor = in_one_reading(x, (-2, -1))
    norms = np.ravel(divisor * np.sqrt(squares))
    assert not np.isfinite(norms[:2]).any()
    assert norms[2] == 5.0


@pytest.mark.parametrize("shape", [(2, 0, 3), (2, 3, 0), (0, 3, 4)])
def test_norms_of_matrices_without_entries(shape):
    x = np.zeros(shape, np.float32)
    for axis in (-1, -2):
        squares, divisor = in_one_reading(x, axis)
        assert squares.shape == np.sum(x, axis, keepdims=True).shape
        assert divisor.shape == (shape[0], 1, 1)


def test_first_iterates_from_norms_in_one_reading(monkeypatch):
    at_once = lambda x, _, axis: squares_in_one_reading(x, axis)
    monkeypatch.setattr(module, "squares_of", at_once)
    run = jax.jit(lambda x: module.wide_unit_norm(x, 1e-7, jnp.float32))
    for size in (1e-37, 1e-30, 1e-10, 1.0, 1e10, 1e20, 1e36):
        y, transposed = run(np.float32(gaussian(60, 40) * size))
        assert transposed
        np.testing.assert_allclose(np.linalg.norm(y), 1, rtol=1e-4)


@pytest.mark.parametrize("axis", [-1, -2])
def test_derivatives_of_norms_in_one_reading(axis, monkeypatch):
    weights = np.float32(gaussian(3, 4).T)
    kernel = linalg.scale_rows if axis == -1 else linalg.scale_columns
    loss = lambda x: jnp.sum(weights * kernel(x))
    x = np.float32(gaussian(4, 3))
    sizes = np.float32([1e-24, 1e-20, 1e-9, 1.0, 3e3, 4e14, 1e20, 1e30])
    derivative = jax.jit(jax.grad(loss))
    want = [size * np.asarray(derivative(x * size)) for size in sizes]
    at_once = lambda x, _, axis: squares_in_one_reading(x, axis)
    monkeypatch.setattr(_equilibrate, "squares_of", at_once)
    derivative = jax.jit(jax.grad(lambda x: loss(x)))  # Traced anew.
    for size, expected in zip(sizes, want, strict=True):
        got = size * np.asarray(derivative(x * size))
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kernel", [linalg.scale_rows, linalg.scale_columns])
def test_matrices_without_entries_when_traced(kernel):
    for shape in ((0, 5), (5, 0), (2, 3, 0)):
        assert jax.jit(kernel)(np.zeros(shape, np.float32)).shape == shape


def test_usable_matrices_are_finite_and_not_zero():
    rows = [[0.0, -2.0], [0.0, 0.0], [1.0, np.nan], [-np.inf, 0.0], [0.0, np.nan]]
    x = np.float32(rows)[:, None]
    usable = np.asarray(jax.jit(is_usable)(x))
    assert usable.shape == (5, 1, 1)
    assert usable.ravel().tolist() == [True, False, False, False, False]
    assert np.ravel(jax.jit(is_some)(x[:2])).tolist() == [True, False]


def test_eps_is_added_to_the_norm_of_the_matrix_over_its_largest_entry():
    x = np.float32(gaussian(3, 4))
    run = jax.jit(lambda x: module.wide_unit_norm(x, 0.5, jnp.float32)[0])
    unit = x / np.abs(x).max()
    want = unit / (np.linalg.norm(unit) + 0.5)
    np.testing.assert_allclose(run(1e3 * x), want, rtol=1e-6)
