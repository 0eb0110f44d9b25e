"""What CUDA runs in place of decompositions that take one matrix at a time.

All of it runs on every platform, so its values are tested here, on whatever there is.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _matrices import gaussian, matrix_with_singular_values, near_singular, polar

from optax_matrix import linalg
from optax_matrix.linalg._orthogonal import cayley
from optax_matrix.linalg._orthonormalize import qr
from optax_matrix.linalg._polar_by_products import polar_by_products, table
from optax_matrix.linalg._svd import svd

EPS = float(np.finfo(np.float32).eps)


@pytest.fixture(autouse=True)
def on_cuda(monkeypatch):
    """Takes the branch for CUDA wherever there is one."""

    def choose(*args, default=None, **branches):
        # LAPACK's batches are for the CPU that this runs on.
        return branches.get("cuda", branches.get("cpu", default))(*args)

    jax.clear_caches()  # Kernels that are already traced keep their branches.
    monkeypatch.setattr(jax.lax, "platform_dependent", choose)
    yield
    monkeypatch.undo()
    jax.clear_caches()


MATRICES = {
    "square": gaussian(40, 40),
    "wide": gaussian(20, 50),
    "tall": gaussian(50, 20),
    "batch": gaussian(3, 24, 30),
    "ill-conditioned": near_singular(40, 40, smallest=1e-5),
    "decaying": matrix_with_singular_values(10.0 ** -np.arange(12), 30, 12),
    "rank two": gaussian(40, 2, seed=1) @ gaussian(2, 40, seed=2),
    "rank half": gaussian(40, 20, seed=1) @ gaussian(20, 60, seed=2),
    "ones": np.ones((16, 16)),
    "zero": np.zeros((8, 12)),
    "zero beside others": np.stack([np.zeros((8, 8)), gaussian(8, 8)]),
    "large": 1e20 * gaussian(12, 12),
    "small": 1e-20 * gaussian(12, 12),
}
kinds = pytest.mark.parametrize("kind", MATRICES)


def single(kind):
    return jnp.asarray(MATRICES[kind], jnp.float32)


def transposed(x):
    return np.swapaxes(x, -1, -2)


def assert_orthonormal(q):
    eye = np.broadcast_to(np.eye(q.shape[-1]), (*q.shape[:-2], *[q.shape[-1]] * 2))
    np.testing.assert_allclose(transposed(q) @ q, eye, atol=30 * EPS)


@pytest.mark.broad
@pytest.mark.daily(
    "square", "tall", "batch", "ill-conditioned", "rank half", "zero beside others"
)
@kinds
def test_qr(kind):
    x = single(kind)
    x = x if x.shape[-2] >= x.shape[-1] else x.mT
    q, r = map(np.asarray, jax.jit(qr)(x))
    assert_orthonormal(q)
    np.testing.assert_array_equal(np.tril(r, -1), 0)
    size = np.max(np.abs(x)) * 100 * EPS
    np.testing.assert_allclose(q @ r, x, atol=size)


@pytest.mark.broad
@pytest.mark.daily("wide", "batch", "ill-conditioned", "rank half", "zero")
@kinds
def test_svd(kind):
    x = single(kind)
    u, s, vt = (np.asarray(y, np.float64) for y in jax.jit(svd)(x))
    assert_orthonormal(u)
    assert_orthonormal(transposed(vt))
    exact = np.linalg.svd(np.asarray(x, np.float64), compute_uv=False)
    size = exact.max() * 50 * EPS + 1e-30
    np.testing.assert_allclose(s, exact, atol=size)
    # The vectors of small values have an error by the polar factor's.
    np.testing.assert_allclose((u * s[..., None, :]) @ vt, x, atol=4 * size)


@pytest.mark.broad
@pytest.mark.daily("batch", "ill-conditioned", "rank half", "zero beside others")
@kinds
@pytest.mark.parametrize(
    "kernel",
    [pytest.param(linalg.polar_svd, marks=pytest.mark.slow), linalg.polar_qr],
)
def test_compact_polar_factors(kernel, kind):
    x = single(kind)
    u = np.asarray(jax.jit(kernel)(x), np.float64)
    values = np.linalg.svd(u, compute_uv=False)
    exact = np.linalg.svd(np.asarray(x, np.float64), compute_uv=False)
    ratio = exact / np.maximum(exact[..., :1], 1e-300)
    # Values near the cut may count or not.
    np.testing.assert_allclose(values[ratio > 1e-5], 1, atol=100 * EPS)
    np.testing.assert_allclose(values[ratio < 1e-7], 0, atol=1e-3)
    if np.all(ratio > 1e-3):
        np.testing.assert_allclose(u, polar(np.asarray(x, np.float64)), atol=1e-4)


@pytest.mark.quick("96-384")
@pytest.mark.parametrize("shape", [(96, 384), (96, 96)], ids=lambda x: f"{x[0]}-{x[1]}")
@pytest.mark.parametrize("rank", [1, 32])
def test_nothing_outside_the_range_is_left_in_a_polar_factor(shape, rank):
    """The iteration takes rounding up to one; its sign, kept symmetric, removes it."""
    x = matrix_with_singular_values(np.linspace(1, 0.5, rank), *shape)
    u = jax.jit(linalg.polar_svd)(np.float32(x))
    np.testing.assert_allclose(u, polar(x), atol=50 * EPS)


@pytest.mark.parametrize("smallest", [1e-2, 1e-4, 1e-6])
@pytest.mark.parametrize("x64", [False, True])
def test_polar_factors_by_products_are_backward_stable(smallest, x64):
    """X = H U with a symmetric H without negative eigenvalues, to rounding."""
    x = matrix_with_singular_values(np.geomspace(1, smallest, 60), 60, 150)
    with jax.enable_x64(x64):
        u = jax.jit(polar_by_products)(x)
        eps = float(jnp.finfo(u.dtype).eps)
    u = np.float64(u)
    np.testing.assert_allclose(u @ u.T, np.eye(60), atol=30 * eps)
    h = x @ u.T
    np.testing.assert_allclose(h, h.T, atol=30 * eps)
    assert np.linalg.eigvalsh((h + h.T) / 2).min() > -30 * eps


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_quintics_take_all_singular_values_to_one(dtype):
    """From the level of rounding of a Frobenius norm up, and none beyond the next row's
    interval."""
    eps = float(np.finfo(dtype).eps)
    x = np.geomspace(eps / 64, 1, 100_001)
    for a, b, c in table(eps):
        assert x.max() < 2
        x = a * x + b * x**3 + c * x**5
    np.testing.assert_allclose(x, 1, atol=2 * eps)


@pytest.mark.quick("0.3-5", "3.0-64")
@pytest.mark.parametrize("side", [2, 5, 64, 256])
@pytest.mark.parametrize("norm", [1e-3, 0.3, 1.0, 3.0, 30.0])
def test_cayley(side, norm):
    x = gaussian(3, side, side)
    x = x - transposed(x)
    x = norm * x / np.linalg.norm(x, 2, axis=(-2, -1), keepdims=True)
    g = np.asarray(jax.jit(cayley)(np.float32(x)), np.float64)
    eye = np.eye(side)
    exact = np.linalg.solve(eye - x, eye + x)
    np.testing.assert_allclose(g, exact, atol=100 * EPS)
    assert_orthonormal(g)


def test_the_derivative_of_cayley():
    x, direction = gaussian(2, 6, 6), gaussian(2, 6, 6, seed=1)
    x, direction = (y - transposed(y) for y in (x, direction))
    eye = np.eye(6)
    inverse = np.linalg.inv(eye - x)
    exact = 2 * inverse @ direction @ inverse
    pair = np.float32(x), np.float32(direction)
    forward = jax.jit(lambda x, y: jax.jvp(cayley, (x,), (y,))[1])
    found = forward(*pair)
    np.testing.assert_allclose(found, exact, atol=50 * EPS * np.abs(exact).max())
    back = jax.jit(lambda x, y: jax.vjp(cayley, x)[1](y))
    (found,) = back(*pair)
    turned = transposed(inverse)
    exact = 2 * turned @ direction @ turned
    np.testing.assert_allclose(found, exact, atol=50 * EPS * np.abs(exact).max())
