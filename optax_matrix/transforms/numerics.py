"""Norms and quotients of stacks of matrices.

They neither overflow nor underflow for entries as large as 1e20 or as small as 1e-20.
"""

import jax
import jax.numpy as jnp

from optax_matrix.linalg.scale import safe_root, unit_peak, work_dtype


def widened(x: jax.Array) -> jax.Array:
    """Casts half precision to float32 and leaves float32 and float64 as they are.

    Args:
        x: Any floating array.

    Returns:
        The array in float32, or in float64 if that is its dtype.
    """
    return x.astype(work_dtype(x.dtype))


def safe_divide(x: jax.Array, y: jax.Array) -> jax.Array:
    """Divides, and returns zero wherever the divisor is zero.

    Args:
        x: The dividend.
        y: The divisor, not negative; broadcasts against ``x``.

    Returns:
        ``x / y``, and 0 where ``y`` is 0.
    """
    # `y == 0`, not `y > 0`, so that a NaN in the divisor stays visible.
    return jnp.where(y == 0, 0, x / jnp.where(y == 0, 1, y))


def matrix_norm(x: jax.Array) -> jax.Array:
    """Frobenius norm of every matrix in a stack, with two axes of length one kept.

    Entries are divided by the largest one before they are squared, so that nothing
    overflows and nothing is flushed to zero.

    Args:
        x: Matrices of shape ``(..., m, n)``.

    Returns:
        Norms of shape ``(..., 1, 1)``; float32 for half-precision input.
    """
    y, peak = unit_peak(widened(x))
    return peak * safe_root(jnp.sum(y * y, axis=(-2, -1), keepdims=True))


def column_norms(x: jax.Array) -> jax.Array:
    """Norms of columns, computed so that they neither overflow nor vanish.

    Args:
        x: Matrices ``(..., m, n)``.

    Returns:
        Norms ``(..., n)``, at least float32.
    """
    y, peak = unit_peak(widened(x))
    return peak[..., 0] * safe_root(jnp.sum(y * y, axis=-2))
