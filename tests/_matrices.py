"""Matrices with known spectra, in NumPy float64, seeds fixed."""

import contextlib

import jax
import numpy as np


def orthonormal(m, n, seed=0):
    """Random ``(m, n)`` matrix with orthonormal columns, m >= n."""
    q, r = np.linalg.qr(np.random.default_rng(seed).standard_normal((m, n)))
    return q * np.sign(np.diagonal(r))


def matrix_with_singular_values(s, m, n, seed=0):
    """Random ``(m, n)`` matrix whose nonzero singular values are ``s``."""
    s = np.asarray(s, np.float64)
    return (orthonormal(m, s.size, seed) * s) @ orthonormal(n, s.size, seed + 1).T


def gaussian(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def ones(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


def rank_one(m, n, seed=0):
    return np.outer(gaussian(m, seed=seed), gaussian(n, seed=seed + 1))


def near_singular(m, n, smallest=1e-3, seed=0):
    """Singular values from one down to ``smallest``, evenly spaced in the log."""
    return matrix_with_singular_values(np.geomspace(1, smallest, min(m, n)), m, n, seed)


def shapes():
    """Tall, wide, square, one row and batched Gaussians by name."""
    return {
        "square": gaussian(8, 8, seed=1),
        "wide": gaussian(8, 20, seed=2),
        "tall": gaussian(20, 8, seed=3),
        "one_row": gaussian(1, 8, seed=4),
        "one_column": gaussian(8, 1, seed=5),
        "batched": gaussian(2, 3, 8, 20, seed=6),
    }


def polar(x, rtol=1e-6):
    """Compact polar factor by NumPy's SVD in float64."""
    u, s, vt = np.linalg.svd(np.asarray(x, np.float64), full_matrices=False)
    kept = s > rtol * np.max(s, axis=-1, keepdims=True)
    return (u * kept[..., None, :]) @ vt


@contextlib.contextmanager
def strict():
    """No implicit promotion of types or ranks inside a kernel."""
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield
