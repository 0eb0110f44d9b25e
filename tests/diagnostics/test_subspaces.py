"""Comparisons of two bases against NumPy and closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _matrices import gaussian, orthonormal, strict

from optax_matrix import diagnostics as d


def columns(m, r, seed=0):
    return np.stack([orthonormal(m, r, seed=seed + i) for i in range(2)])


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


def test_mistakes_are_named():
    with pytest.raises(ValueError, match=r"`v` must have 3 rows"):
        d.subspace_overlap(jnp.ones((3, 2)), jnp.ones((4, 2)))
    with pytest.raises(ValueError, match=r"`v` must have the shape \(3, 2\)"):
        d.eigenvector_cosines(jnp.ones((3, 2)), jnp.ones((3, 1)))
