"""Skew-symmetric matrices by their strict upper triangles."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


def triangle_size(b: int) -> int:
    """Number of free entries of a skew-symmetric ``b x b`` matrix.

    Args:
        b: Side of the matrix.

    Returns:
        ``b (b - 1) / 2``.

    Examples:
        >>> triangle_size(4)
        6
    """
    return b * (b - 1) // 2


def to_skew(v: Float[Array, "*batch t"], b: int) -> Float[Array, "*batch {b} {b}"]:
    r"""Skew-symmetric matrices from their strict upper triangles.

    .. math::
        Q_{ij} = v_{ij}, \quad Q_{ji} = -v_{ij}, \quad i < j

    Args:
        v: Triangles row by row, ``(..., b (b - 1) / 2)``.
        b: Side of the matrices.

    Returns:
        Matrices ``(..., b, b)``.

    Examples:
        >>> to_skew(jnp.array([1.0, 2.0, 3.0]), 3).tolist()
        [[0.0, 1.0, 2.0], [-1.0, 0.0, 3.0], [-2.0, -3.0, 0.0]]
    """
    place = np.zeros((b, b), np.int32)  # Where each entry of Q stands in (0, v, -v).
    rows, cols = np.triu_indices(b, 1)
    place[rows, cols] = 1 + np.arange(len(rows))
    place[cols, rows] = 1 + len(rows) + np.arange(len(rows))
    zero = jnp.zeros((*v.shape[:-1], 1), v.dtype)
    return jnp.concatenate([zero, v, -v], axis=-1)[..., place]


def from_skew(q: Float[Array, "*batch b b"]) -> Float[Array, "*batch t"]:
    """The strict upper triangles of matrices, row by row; inverts `to_skew`.

    Args:
        q: Matrices ``(..., b, b)``.

    Returns:
        Vectors ``(..., b (b - 1) / 2)``.

    Examples:
        >>> from_skew(jnp.array([[0.0, 5.0], [-5.0, 0.0]])).tolist()
        [5.0]
    """
    rows, cols = np.triu_indices(q.shape[-1], 1)
    return q[..., rows, cols]
