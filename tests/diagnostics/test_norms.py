"""Measures of rows and columns against NumPy and closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _matrices import gaussian, orthonormal, shapes, strict

from optax_matrix import diagnostics as d


@pytest.mark.parametrize("x", shapes().values(), ids=shapes())
def test_orthogonality_error_is_that_of_the_shorter_side(x):
    y = x if x.shape[-2] <= x.shape[-1] else x.swapaxes(-1, -2)
    eye = np.eye(y.shape[-2])
    norm = np.linalg.norm(y @ y.swapaxes(-1, -2) - eye, axis=(-2, -1))
    with strict():
        got = d.orthogonality_error(jnp.float32(x))
    np.testing.assert_allclose(got, norm / np.linalg.norm(eye), rtol=1e-5)


@pytest.mark.broad
def test_orthogonality_error_of_semi_orthogonal_and_of_zero_matrices():
    tall = jnp.float32(orthonormal(9, 4))
    assert d.orthogonality_error(tall) < 1e-6
    assert d.orthogonality_error(tall.T) < 1e-6
    assert d.orthogonality_error(jnp.zeros((4, 2))) == 1
    half = d.orthogonality_error(tall.astype(jnp.bfloat16))
    assert half.dtype == jnp.float32
    assert 1e-6 < half < 1e-2


@pytest.mark.daily("square", "out--1-wide", "in--2-tall", "in--2-one_column")
@pytest.mark.parametrize("x", shapes().values(), ids=shapes())
@pytest.mark.parametrize(("side", "axis"), [("out", -1), ("in", -2)])
def test_norm_spread(x, side, axis):
    norms = np.linalg.norm(x, axis=axis)
    got = d.norm_spread(jnp.float32(x), side=side)
    np.testing.assert_allclose(got, norms.max(-1) / norms.min(-1), rtol=1e-5)


@pytest.mark.broad
def test_norm_spread_of_zero_rows_and_extreme_scales():
    x = jnp.float32(gaussian(3, 4))
    assert d.norm_spread(x.at[1].set(0.0)) == np.inf
    assert np.isfinite(d.norm_spread(x.at[1].set(0.0), side="in"))
    assert d.norm_spread(jnp.zeros((2, 2))) == np.inf
    np.testing.assert_allclose(d.norm_spread(1e30 * x), d.norm_spread(x), rtol=1e-5)


@pytest.mark.broad
def test_eigenvector_cosines_are_of_each_column_and_without_sign():
    u, v = gaussian(2, 5, 3), gaussian(2, 5, 3, seed=1)
    norms = np.linalg.norm(u, axis=1) * np.linalg.norm(v, axis=1)
    want = np.abs((u * v).sum(1)) / norms
    with strict():
        got = jax.jit(d.eigenvector_cosines)(jnp.float32(u), jnp.float32(-7 * v))
    np.testing.assert_allclose(got, want, rtol=1e-5)
    zeros = jnp.zeros((5, 3))
    np.testing.assert_array_equal(d.eigenvector_cosines(zeros, jnp.ones((5, 3))), 0)
    half = d.eigenvector_cosines(jnp.bfloat16(u), jnp.bfloat16(v))
    assert half.dtype == jnp.float32


@pytest.mark.broad
def test_under_vmap():
    @jax.jit
    def measured(x):
        return [of(x) for of in (d.orthogonality_error, d.norm_spread)]

    x = jnp.float32(gaussian(3, 4, 4))
    for got, want in zip(jax.vmap(measured)(x), measured(x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(3, 1), (4, 2)])
def test_bases_of_other_shapes_are_refused(shape):
    with pytest.raises(ValueError, match=r"`v` must have the shape \(3, 2\)"):
        d.eigenvector_cosines(jnp.ones((3, 2)), jnp.ones(shape))


def test_mistakes_are_named():
    with pytest.raises(ValueError, match=r"`side` must be one of 'out', 'in'"):
        d.norm_spread(jnp.eye(3), side="rows")
