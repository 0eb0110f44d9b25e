"""MuonEq, Theorem 3.1 and Eq. 5, against the iteration itself in NumPy, float64."""

import functools

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


def right_side(x, slopes):
    """The theorem's bound, with kappa_i and the stable rank."""
    s = np.linalg.svd(x, compute_uv=False)
    s = s[s > 1e-10 * s[0]]
    kappa, sr = s[0] / s, (s**2).sum() / s[0] ** 2
    growth = np.cumprod([1.0, *slopes])
    short = np.maximum(1 - growth[:, None] / (kappa * sr**0.5), 0)
    return np.sqrt((short**2).mean(-1))


@pytest.mark.parametrize("x", shapes().values(), ids=shapes())
def test_errors_are_those_of_the_iteration(x):
    with strict():
        got = jax.jit(d.newton_schulz_errors, static_argnums=1)(jnp.float32(x), STEPS)
    assert got.shape == (*x.shape[:-2], STEPS + 1)
    np.testing.assert_allclose(got, left_side(x, linalg.JORDAN), rtol=1e-3, atol=1e-5)


@pytest.mark.broad
@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_theorem_3_1_holds(table):
    x = near_singular(6, 10, smallest=1e-3)
    errors = d.newton_schulz_errors(jnp.float32(x), STEPS, coefficients=table)
    np.testing.assert_allclose(errors, left_side(x, table), rtol=1e-3, atol=1e-5)
    bound = d.newton_schulz_bound(jnp.float32(x), STEPS, coefficients=table)
    slopes = [table[min(k, len(table) - 1)][0] for k in range(STEPS)]
    np.testing.assert_allclose(bound, right_side(x, slopes), rtol=1e-3, atol=1e-6)
    assert (bound <= errors + 1e-6).all()
    assert bound[2] > 0.5 * errors[2]  # It says something.


@pytest.mark.broad
def test_rank_deficient_and_zero_matrices():
    x = matrix_with_singular_values([3.0, 1.0], 5, 4)
    errors = d.newton_schulz_errors(jnp.float32(x), STEPS)
    np.testing.assert_allclose(errors, left_side(x, linalg.JORDAN), rtol=1e-3)
    ends = d.linear_regime_ends(jnp.float32(x))
    assert np.isfinite(ends[:2]).all()
    assert np.isinf(ends[2:]).all()
    zero = jnp.zeros((3, 2))
    np.testing.assert_array_equal(d.newton_schulz_errors(zero, 2), [0, 0, 0])
    np.testing.assert_array_equal(d.newton_schulz_bound(zero, 2), [0, 0, 0])
    assert np.isinf(d.linear_regime_ends(zero)).all()
    assert d.preconditioning_bias(zero, linalg.scale_rows) == 0
    assert d.finite_step_error(zero, linalg.newton_schulz) == 0


def test_scale_and_transposition_change_nothing():
    x = gaussian(4, 7)
    want = d.newton_schulz_errors(jnp.float32(x))
    for y in (1e30 * x, 1e-30 * x, -x.T):
        np.testing.assert_allclose(d.newton_schulz_errors(jnp.float32(y)), want, 1e-4)


def test_linear_regimes_end_where_the_theorem_says():
    x = near_singular(5, 8, smallest=1e-4)
    a = linalg.JORDAN[0][0]
    got = d.linear_regime_ends(jnp.float32(x))
    sr, kappa = np.linalg.norm(x) ** 2, 1e4  # Its largest singular value is one.
    log = lambda y: np.log(y) / np.log(a)
    assert got[0] == pytest.approx(log(sr**0.5), abs=1e-4)
    assert got[-1] == pytest.approx(log(kappa * sr**0.5), rel=1e-3)
    assert got[-1] - got[0] == pytest.approx(log(kappa), rel=1e-3)
    assert (np.diff(got) > 0).all()
    # Until then a value is no larger than its linear growth, which reaches one there.
    s = np.linalg.svd(x, compute_uv=False) / np.linalg.norm(x)
    np.testing.assert_allclose(s * a ** np.asarray(got, np.float64), 1, rtol=1e-3)


SCALINGS = {
    "none": lambda x: x,
    "R": linalg.scale_rows,
    "C": linalg.scale_columns,
    "RC": linalg.scale_rows_and_columns,
}


@pytest.mark.broad
@pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS)
def test_equation_5(scaling):
    """Both terms, and that their sum bounds the distance from the exact factor."""
    x = gaussian(2, 5, 8) * np.array([1, 2, 4, 0.1, 0.3])[:, None]
    m = jnp.float32(x)
    scaled = np.asarray(scaling(m), np.float64)
    bias = d.preconditioning_bias(m, scaling)
    want = np.linalg.norm(polar(scaled) - polar(x), axis=(-2, -1))
    np.testing.assert_allclose(bias, want, rtol=1e-3, atol=1e-5)
    error = d.finite_step_error(scaling(m), linalg.newton_schulz)
    result = np.asarray(linalg.newton_schulz(scaling(m)), np.float64)
    want = np.linalg.norm(result - polar(scaled), axis=(-2, -1))
    np.testing.assert_allclose(error, want, rtol=1e-3)
    last = d.newton_schulz_errors(scaling(m))[..., -1] * 5**0.5
    np.testing.assert_allclose(error, last, rtol=1e-3)
    whole = np.linalg.norm(result - polar(x), axis=(-2, -1))
    assert (whole <= (error + bias) * (1 + 1e-5)).all()


@pytest.mark.broad
def test_equilibration_reduces_the_error_and_costs_a_bias():
    """Figure 7 for rows whose norms differ by 1000: the terms of Eq. 5 trade off."""
    x = jnp.float32(gaussian(8, 16) * np.geomspace(1, 1e-3, 8)[:, None])
    five = functools.partial(linalg.newton_schulz, steps=5)
    assert d.finite_step_error(linalg.scale_rows(x), five) < d.finite_step_error(
        x, five
    )
    assert d.preconditioning_bias(x, linalg.scale_rows) > 0.1


@pytest.mark.broad
def test_bf16_input_is_measured_in_float32():
    x = jnp.asarray(gaussian(4, 6), jnp.bfloat16)
    for value in (
        d.newton_schulz_errors(x),
        d.linear_regime_ends(x),
        d.preconditioning_bias(x, linalg.scale_rows),
        d.finite_step_error(x, linalg.polar_svd),
    ):
        assert value.dtype == jnp.float32
        assert np.isfinite(value).all()
    assert 0 < d.finite_step_error(x, linalg.polar_svd) < 0.05  # The kernel rounds.


def test_mistakes_are_named():
    x = jnp.eye(3)
    with pytest.raises(ValueError, match=r"`steps` must be a positive int, got 0"):
        d.newton_schulz_errors(x, 0)
    with pytest.raises(ValueError, match=r"`coefficients` must be rows of three"):
        d.newton_schulz_errors(x, coefficients=[(1.5, -0.5)])
    for row in [(0.9, -0.1, 0.0), (1.5, 0.5, 0.0), (2.0, -4.0, 1.9), (1.5, -2.0, 0.0)]:
        with pytest.raises(ValueError, match=r"`coefficients` must have a > 1"):
            d.newton_schulz_bound(x, coefficients=[row])
    with pytest.raises(ValueError, match=r"`slope` must be above 1, got 1.0"):
        d.linear_regime_ends(x, slope=1.0)
    with pytest.raises(ValueError, match=r"`scaling` must be a function"):
        d.preconditioning_bias(x, "R")
    with pytest.raises(ValueError, match=r"`polar` must be a function"):
        d.finite_step_error(x, None)
