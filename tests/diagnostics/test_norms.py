"""Measures of rows and columns against NumPy and closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _matrices import gaussian, orthonormal, shapes, strict

from optax_matrix import diagnostics as d

energy = jax.jit(d.hyperspherical_energy)


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


@pytest.mark.parametrize("x", shapes().values(), ids=shapes())
def test_hyperspherical_energy_is_equation_1(x):
    unit = x / np.linalg.norm(x, axis=-1, keepdims=True)
    distance = np.linalg.norm(unit[..., :, None, :] - unit[..., None, :, :], axis=-1)
    off = ~np.eye(x.shape[-2], dtype=bool)
    with np.errstate(divide="ignore"):
        each = np.where(off, 1 / distance, 0)
    if x.shape[-1] == 1:  # Neurons of one input coincide; a distance has a floor.
        each = np.minimum(each, 1 / (2 * np.finfo(np.float32).eps ** 0.5))
    with strict():
        got = energy(jnp.float32(x))
    np.testing.assert_allclose(got, each.sum((-2, -1)), rtol=1e-4)


def test_hyperspherical_energy_has_poets_invariances():
    """It depends on angles alone; rotations of the inputs keep it (POET, Eq. 1)."""
    w = jnp.float32(gaussian(7, 5))
    want = energy(w)
    np.testing.assert_allclose(energy(w @ jnp.float32(orthonormal(5, 5))), want, 1e-4)
    scales = jnp.arange(1.0, 8.0)[:, None]
    np.testing.assert_allclose(energy(1e20 * scales * w), want, 1e-4)
    simplex = jnp.eye(4)  # All 12 ordered pairs are sqrt(2) apart.
    assert energy(simplex) == pytest.approx(12 / 2**0.5, rel=1e-6)
    assert energy(jnp.zeros((4, 3))) == 0
    with_dead = jnp.pad(w, ((0, 2), (0, 0)))
    np.testing.assert_allclose(energy(with_dead), want, rtol=1e-5)
    twins = energy(jnp.ones((2, 3)))
    assert twins == pytest.approx(2 / 2 / float(jnp.finfo(jnp.float32).eps) ** 0.5)


@pytest.mark.broad
def test_under_vmap():
    @jax.jit
    def measured(x):
        return [of(x) for of in (d.orthogonality_error, d.norm_spread, energy)]

    x = jnp.float32(gaussian(3, 4, 4))
    for got, want in zip(jax.vmap(measured)(x), measured(x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_mistakes_are_named():
    with pytest.raises(ValueError, match=r"`side` must be one of 'out', 'in'"):
        d.norm_spread(jnp.eye(3), side="rows")
