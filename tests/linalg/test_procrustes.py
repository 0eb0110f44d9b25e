"""Steps to the symmetric polar factor, and the estimate of a norm."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _matrices import gaussian, matrix_with_singular_values, orthonormal

from optax_matrix.linalg.rotations import procrustes_step
from optax_matrix.linalg.spectral_norms import estimated_norm


@pytest.mark.quick("1.0")
@pytest.mark.parametrize("size", [1e-20, 1.0, 1e20])
def test_the_norm_is_estimated_from_below(size):
    """Of Gram matrices and of skew-symmetric ones, of any rank and size."""
    for n in (1, 2, 5, 60):
        x = gaussian(n, n, seed=n)
        row = np.outer(x[0], np.ones(n))
        for a in (x @ x.T, x - x.T, row @ row.T, row - row.T):
            norm = np.linalg.norm(a, 2)
            got = np.asarray(jax.jit(estimated_norm)(np.float32(size * a)))
            got = got[0, 0] / size
            assert 0.85 * norm <= got <= norm * (1 + 1e-5), (n, got, norm)


@pytest.mark.broad
def test_of_one_pair_of_singular_values_the_norm_is_exact():
    q = orthonormal(6, 2)
    a = np.float32(3 * (np.outer(q[:, 0], q[:, 1]) - np.outer(q[:, 1], q[:, 0])))
    np.testing.assert_allclose(jax.jit(estimated_norm)(a), 3, rtol=1e-5)


@pytest.mark.broad
def test_steps_end_at_the_symmetric_polar_factor():
    """And are rotations: singular values stay, to fourth order in the step."""
    s = np.linspace(1, 3, 5)
    q = matrix_with_singular_values(s, 5, 5)
    q = q * np.sign(np.linalg.det(q))  # Rotations do not change the sign.
    u, _, vt = np.linalg.svd(q)
    if np.linalg.det(u @ vt) < 0:
        q[0] *= -1
    step = jax.jit(procrustes_step)
    x = np.float32(q)
    for _ in range(200):
        before, x = x, np.asarray(step(x))
        assert np.trace(x) >= np.trace(before) - 1e-5
    np.testing.assert_allclose(np.linalg.svd(x)[1], s[::-1], rtol=0.02)
    np.testing.assert_allclose(x, x.T, atol=1e-4)
    assert np.linalg.eigvalsh(x).min() > 0.9


@pytest.mark.broad
def test_a_symmetric_matrix_stays():
    s = np.float32(gaussian(4, 4) @ gaussian(4, 4).T)
    step = jax.jit(procrustes_step)
    np.testing.assert_array_equal(step(s + s.T), s + s.T)
    np.testing.assert_array_equal(step(jnp.zeros((2, 3, 3))), 0)
