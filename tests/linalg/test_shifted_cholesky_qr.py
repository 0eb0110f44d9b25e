"""ARO's kernel to the letter."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _matrices import gaussian, matrix_with_singular_values

from optax_matrix.linalg import qr_householder, shifted_cholesky_qr


@pytest.mark.daily("shape0", "0.001")
@pytest.mark.broad
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("shape", [(5, 5), (9, 4), (2, 7, 3)])
@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_it_is_one_pass_with_an_absolute_shift(shape, scale):
    x = scale * gaussian(*shape, seed=1)
    gram = np.swapaxes(x, -1, -2) @ x + 1e-7 * np.eye(shape[-1])
    want = x @ np.swapaxes(np.linalg.inv(np.linalg.cholesky(gram)), -1, -2)
    np.testing.assert_allclose(shifted_cholesky_qr(jnp.asarray(x)), want, rtol=1e-9)
    # So the size of the columns depends on that of the input.
    sizes = np.linalg.norm(shifted_cholesky_qr(jnp.asarray(x)), axis=-2)
    assert (np.abs(sizes - 1) < 1e-6).all() == (scale == 1.0)


@pytest.mark.slow
def test_what_fails_is_decomposed_by_householder_alone():
    good = gaussian(6, 3, seed=2)
    bad = 1e3 * matrix_with_singular_values([1.0, 1e-6, 1e-9], 6, 3)
    x = jnp.float32([good, bad])
    got = shifted_cholesky_qr(x)
    np.testing.assert_allclose(got[1], qr_householder(x[1]), atol=1e-6)
    np.testing.assert_allclose(got[0], shifted_cholesky_qr(x[:1])[0], atol=1e-6)
    eye = np.eye(3)
    np.testing.assert_allclose(got[1].T @ got[1], eye, atol=1e-5)


@pytest.mark.broad
def test_zeros_and_what_is_not_finite_give_the_previous():
    x = jnp.stack([jnp.zeros((4, 2)), jnp.full((4, 2), jnp.nan), jnp.eye(4, 2)])
    previous = jnp.broadcast_to(jnp.eye(4, 2)[::-1], x.shape)
    got = jax.jit(shifted_cholesky_qr)(x, previous=previous)
    np.testing.assert_array_equal(got[:2], previous[:2])
    np.testing.assert_allclose(got[2], jnp.eye(4, 2), atol=1e-6)


@pytest.mark.broad
def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="`shift` must be positive"):
        shifted_cholesky_qr(jnp.eye(2), shift=0.0)
    with pytest.raises(ValueError, match="as many rows as columns"):
        shifted_cholesky_qr(jnp.ones((2, 3)))
