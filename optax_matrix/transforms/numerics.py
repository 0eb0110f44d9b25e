"""Norms and quotients of stacks of matrices.

They neither overflow nor underflow for entries as large as 1e20 or as small as 1e-20.
"""

import jax
import jax.numpy as jnp

from optax_matrix.linalg.scale import safe_root, unit_peak, widened as widened


def safe_divide(x: jax.Array, y: jax.Array) -> jax.Array:
    """Divides, and returns zero wherever the divisor, not negative, is zero."""
    # `y == 0`, not `y > 0`, so that a NaN in the divisor stays visible.
    return jnp.where(y == 0, 0, x / jnp.where(y == 0, 1, y))


def matrix_norm(x: jax.Array) -> jax.Array:
    """Frobenius norm ``(..., 1, 1)`` of every matrix, at least float32."""
    # Divided by the largest entry, so that no square overflows or is flushed to zero.
    y, peak = unit_peak(widened(x))
    return peak * safe_root(jnp.sum(y * y, axis=(-2, -1), keepdims=True))


def column_norms(x: jax.Array) -> jax.Array:
    """Norms ``(..., n)`` of columns, at least float32."""
    y, peak = unit_peak(widened(x))
    return peak[..., 0] * safe_root(jnp.sum(y * y, axis=-2))
