"""The errors of Newton-Schulz steps against the iteration in NumPy, float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _matrices import (
    gaussian,
    matrix_with_singular_values,
    near_singular,
    polar,
    shapes,
    strict,
)

from optax_matrix import diagnostics as d, linalg

STEPS = 6
TABLES = {
    name: getattr(linalg, name)
    for name in ("JORDAN", "CUBIC", "TAYLOR", "YOU", "POLAR_EXPRESS")
}


def iterates(x, table):
    """X_0, ..., X_STEPS of the theorem."""
    x = x / np.linalg.norm(x, axis=(-2, -1), keepdims=True)
    yield x
    for k in range(STEPS):
        a, b, c = table[min(k, len(table) - 1)]
        gram = x @ x.swapaxes(-1, -2)
        x = a * x + (b * gram + c * gram @ gram) @ x
        yield x


def left_side(x, table):
    target = polar(x)
    rank = np.linalg.matrix_rank(x)
    errors = [np.linalg.norm(y - target, axis=(-2, -1)) for y in iterates(x, table)]
    return np.stack(errors, -1) / np.sqrt(rank)[..., None]


@pytest.mark.parametrize("x", shapes().values(), ids=shapes())
def test_errors_are_those_of_the_iteration(x):
    with strict():
        got = jax.jit(d.newton_schulz_errors, static_argnums=1)(jnp.float32(x), STEPS)
    assert got.shape == (*x.shape[:-2], STEPS + 1)
    np.testing.assert_allclose(got, left_side(x, linalg.JORDAN), rtol=1e-3, atol=1e-5)


@pytest.mark.broad
@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_errors_of_every_table(table):
    x = near_singular(6, 10, smallest=1e-3)
    errors = d.newton_schulz_errors(jnp.float32(x), STEPS, coefficients=table)
    np.testing.assert_allclose(errors, left_side(x, table), rtol=1e-3, atol=1e-5)


@pytest.mark.broad
def test_rank_deficient_and_zero_matrices():
    x = matrix_with_singular_values([3.0, 1.0], 5, 4)
    errors = d.newton_schulz_errors(jnp.float32(x), STEPS)
    np.testing.assert_allclose(errors, left_side(x, linalg.JORDAN), rtol=1e-3)
    zero = jnp.zeros((3, 2))
    np.testing.assert_array_equal(d.newton_schulz_errors(zero, 2), [0, 0, 0])


def test_scale_and_transposition_change_nothing():
    x = gaussian(4, 7)
    want = d.newton_schulz_errors(jnp.float32(x))
    for y in (1e30 * x, 1e-30 * x, -x.T):
        np.testing.assert_allclose(d.newton_schulz_errors(jnp.float32(y)), want, 1e-4)


@pytest.mark.broad
def test_bf16_input_is_measured_in_float32():
    x = jnp.asarray(gaussian(4, 6), jnp.bfloat16)
    value = d.newton_schulz_errors(x)
    assert value.dtype == jnp.float32
    assert np.isfinite(value).all()


def test_mistakes_are_named():
    x = jnp.eye(3)
    with pytest.raises(ValueError, match=r"`steps` must be a positive int, got 0"):
        d.newton_schulz_errors(x, 0)
    with pytest.raises(ValueError, match=r"`coefficients` must be rows of three"):
        d.newton_schulz_errors(x, coefficients=[(1.5, -0.5)])
