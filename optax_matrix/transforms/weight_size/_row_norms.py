"""Norms of the rows of matrices."""

import jax

from optax_matrix.linalg.scale import matrix_norm


def row_norms(x: jax.Array) -> jax.Array:
    """Norms ``(..., m, 1)`` that neither overflow nor vanish."""
    return matrix_norm(x[..., None, :])[..., 0]
