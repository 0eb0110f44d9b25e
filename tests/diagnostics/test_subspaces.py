"""Comparisons of bases against NumPy and closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _matrices import gaussian, orthonormal, strict

from optax_matrix import diagnostics as d


def columns(m, r, seed=0):
    return np.stack([orthonormal(m, r, seed=seed + i) for i in range(2)])


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (6, 6)])
def test_captured_energy(shape):
    x, u = gaussian(2, *shape), columns(shape[0], 2)
    norm = lambda y: np.linalg.norm(y, axis=(-2, -1)) ** 2
    want = norm(u.swapaxes(-1, -2) @ x) / norm(x)
    with strict():
        got = jax.jit(d.captured_energy)(jnp.float32(x), jnp.float32(u))
    np.testing.assert_allclose(got, want, rtol=1e-5)
    scaled = d.captured_energy(jnp.float32(1e30 * x), jnp.float32(u))
    np.testing.assert_allclose(scaled, want, rtol=1e-5)


@pytest.mark.broad
def test_captured_energy_at_its_ends():
    x = jnp.float32(gaussian(5, 7))
    left, s, _ = np.linalg.svd(np.asarray(x, np.float64))
    best = d.captured_energy(x, jnp.float32(left[:, :2]))
    np.testing.assert_allclose(best, 1 - d.tail_energy(x, 2), rtol=1e-5)
    np.testing.assert_allclose(best, (s[:2] ** 2).sum() / (s**2).sum(), rtol=1e-5)
    assert d.captured_energy(x, jnp.float32(left)) == pytest.approx(1, rel=1e-5)
    assert d.captured_energy(jnp.zeros((5, 7)), jnp.float32(left)) == 0


def test_subspace_overlap_is_the_mean_squared_cosine():
    u, v = columns(8, 3), columns(8, 4, seed=5)
    cosines = np.linalg.svd(u.swapaxes(-1, -2) @ v, compute_uv=False)
    got = d.subspace_overlap(jnp.float32(u), jnp.float32(v))
    np.testing.assert_allclose(got, (cosines**2).mean(-1), rtol=1e-5)
    # It does not depend on the basis of a subspace; one inside another gives 1.
    turn = columns(3, 3, seed=9)
    np.testing.assert_allclose(
        d.subspace_overlap(jnp.float32(u), u @ turn), 1, rtol=1e-5
    )
    inside = d.subspace_overlap(jnp.float32(u), jnp.float32(u[..., :2]))
    np.testing.assert_allclose(inside, 1, rtol=1e-5)


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
def test_basis_stability_compares_successive_bases_of_a_tree():
    u, v, w = (jnp.float32(columns(6, 2, seed=10 * i)) for i in range(3))
    trees = [{"a": x, "b": (x[..., :1],)} for x in (u, v, w)]
    got = d.basis_stability(trees)
    want = np.stack([d.eigenvector_cosines(u, v), d.eigenvector_cosines(v, w)])
    np.testing.assert_allclose(got["a"], want, rtol=1e-6)
    np.testing.assert_allclose(got["b"][0], want[..., :1], rtol=1e-6)


def test_mistakes_are_named():
    with pytest.raises(ValueError, match=r"`basis` must have 3 rows"):
        d.captured_energy(jnp.ones((3, 4)), jnp.ones((4, 2)))
    with pytest.raises(ValueError, match=r"`v` must have 3 rows"):
        d.subspace_overlap(jnp.ones((3, 2)), jnp.ones((4, 2)))
    with pytest.raises(ValueError, match=r"`v` must have the shape \(3, 2\)"):
        d.eigenvector_cosines(jnp.ones((3, 2)), jnp.ones((3, 1)))
    with pytest.raises(ValueError, match=r"`bases` must be two or more, got 1"):
        d.basis_stability([jnp.ones((3, 2))])
