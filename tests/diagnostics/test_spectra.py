"""Spectral measures against NumPy in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _matrices import gaussian, matrix_with_singular_values, shapes, strict

from optax_matrix import diagnostics as d

MEASURES = {"stable_rank": d.stable_rank, "condition_number": d.condition_number}


@jax.jit
def measured(x):
    return {name: of(x) for name, of in MEASURES.items()}


def reference(x):
    """Every measure by its formula, in float64."""
    s = np.linalg.svd(np.asarray(x, np.float64), compute_uv=False)
    return {
        "stable_rank": (s**2).sum(-1) / s[..., 0] ** 2,
        "condition_number": s[..., 0] / s[..., -1],
    }


@pytest.mark.parametrize("x", shapes().values(), ids=shapes())
def test_measures_are_their_formulas(x):
    want = reference(x)
    with strict():
        got = measured(jnp.asarray(x, jnp.float32))
    for name, value in got.items():
        assert value.shape == x.shape[:-2]
        np.testing.assert_allclose(
            value, want[name], rtol=1e-4, atol=1e-6, err_msg=name
        )


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (5, 5)])
def test_the_spectrum_is_the_one_that_was_made(shape):
    s = [4.0, 2.0, 1.0, 0.5]
    x = np.stack([c * matrix_with_singular_values(s, *shape) for c in (1.0, 3.0)])
    got = d.singular_values(x.astype(np.float32))
    short = min(shape)
    want = np.zeros((2, short))
    want[:, :4] = np.outer([1, 3], s)
    np.testing.assert_allclose(got, want, atol=1e-5)
    assert (np.diff(got) <= 1e-6).all()


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_extreme_scales_change_nothing(scale):
    x = gaussian(5, 7)
    want, got = measured(jnp.float32(x)), measured(jnp.float32(scale * x))
    for name in MEASURES:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-5)
    s = d.singular_values(jnp.float32(scale * x))
    np.testing.assert_allclose(s, scale * d.singular_values(jnp.float32(x)), rtol=1e-5)


def test_zero_and_rank_deficient_matrices():
    zero = jnp.zeros((3, 5))
    got = measured(zero)
    assert got == {**dict.fromkeys(MEASURES, 0.0), "condition_number": np.inf}
    got = measured(jnp.float32(np.outer([1, -2, 2], [3, 4, 0, 0, 0])))
    assert got["condition_number"] > 1e6
    assert got["stable_rank"] == pytest.approx(1)


def test_bf16_is_measured_in_float32():
    x = jnp.asarray(gaussian(6, 9), jnp.bfloat16)
    got = measured(x)
    for name, want in reference(x.astype(jnp.float32)).items():
        assert got[name].dtype == jnp.float32
        np.testing.assert_allclose(got[name], want, rtol=1e-4)


@pytest.mark.broad
def test_condition_number_of_the_leading_and_of_the_numerical_rank():
    x = jnp.float32(matrix_with_singular_values([8, 4, 1, 1e-9], 6, 5))
    assert d.condition_number(x, rank=2) == pytest.approx(2, rel=1e-5)
    assert d.condition_number(x, rank=3) == pytest.approx(8, rel=1e-5)
    assert d.condition_number(x, rtol=1e-5) == pytest.approx(8, rel=1e-5)
    assert d.condition_number(x, rtol=0.3) == pytest.approx(2, rel=1e-5)
    assert d.condition_number(x) > 1e6
    assert d.condition_number(x, rank=99) == d.condition_number(x)
    assert d.condition_number(jnp.zeros((2, 2)), rtol=1e-5) == np.inf
    assert d.condition_number(jnp.diag(jnp.array([1.0, 0.0]))) == np.inf


def test_nan_stays_visible():
    x = jnp.float32(gaussian(3, 4)).at[1, 1].set(jnp.nan)
    assert not any(np.isfinite(value) for value in measured(x).values())


@pytest.mark.broad
def test_under_vmap():
    x = jnp.float32(gaussian(3, 4, 6))
    want, got = measured(x), jax.vmap(measured)(x)
    for name in MEASURES:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-5)


def test_mistakes_are_named():
    with pytest.raises(ValueError, match=r"`rank` must be a positive int, got 0"):
        d.condition_number(jnp.ones((3, 3)), rank=0)
    with pytest.raises(ValueError, match=r"`rtol` must not be negative"):
        d.condition_number(jnp.ones((3, 3)), rtol=-1.0)
