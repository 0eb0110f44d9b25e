"""Skew-symmetric blocks, represented by their strict upper triangles."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from optax_matrix.linalg.precision import roots
from optax_matrix.linalg.scale import as_work, safe_root, unit_peak


def block_grid(n: int, block: Any, variant: str) -> tuple[int, int]:
    """The number and the side of the blocks for a dimension n.

    ``"full"`` has one block, ``"block"`` as many as it takes to cover n; of a last
    block that extends beyond n, only the leading part acts. A float is a fraction of n.
    """
    b = max(int(round(block * n, 6)), 2) if isinstance(block, float) else int(block)
    b = min(b, n)
    return (1 if variant == "full" else -(-n // b)), b


def free_entries(n: int, k: int, b: int) -> np.ndarray:
    """Which entries of the triangles of k blocks of side b lie within n.

    Booleans ``(k, b (b - 1) / 2)``: True for trainable parameters; the others must be
    zero.
    """
    _, cols = np.triu_indices(b, 1)
    return cols + b * np.arange(k)[:, None] < n


def triangle_size(b: int) -> int:
    """Number of free entries of a skew-symmetric ``b x b`` matrix."""
    return b * (b - 1) // 2


def triangle_side(size: int) -> int:
    """Side of the skew-symmetric matrix with this number of free entries."""
    return (1 + math.isqrt(1 + 8 * size)) // 2


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
    # One gather with constant indices, in place of scatters into both triangles.
    place = np.zeros((b, b), np.int32)  # Index of each entry of Q in (0, v, -v).
    rows, cols = np.triu_indices(b, 1)
    place[rows, cols] = 1 + np.arange(len(rows))
    place[cols, rows] = 1 + len(rows) + np.arange(len(rows))
    both = jnp.concatenate([v, -v], axis=-1)
    widths = [(0, 0)] * (v.ndim - 1) + [(1, 0)]
    return jnp.pad(both, widths)[..., place]


def from_skew(q: Float[Array, "*batch b b"]) -> Float[Array, "*batch t"]:
    """The strict upper triangles of matrices, row by row; the inverse of `to_skew`.

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


def skew_norm(q: Float[Array, "*batch b b"]) -> Float[Array, "*batch"]:
    r"""Upper bound on the spectral norm of skew-symmetric matrices.

    .. math::
        \left(\|Q^4\|_F^2 / 2\right)^{1/8}

    Singular values come in pairs. If only one pair is not zero, the bound is the norm
    itself. In general it is at most :math:`(b/2)^{1/8}` times the norm: 1.5 times at
    b = 64, 1.8 times at b = 256.

    Args:
        q: Matrices ``(..., b, b)``.

    Returns:
        One number per matrix, in the working precision.

    Examples:
        >>> float(skew_norm(jnp.array([[0.0, 3.0], [-3.0, 0.0]])))
        3.0
    """
    # The values of Q^4 are the fourth powers of Q's, each twice: the Frobenius norm of
    # Q^4 is a Schatten 8-norm of one of each pair, close to the largest.
    y, peak = unit_peak(as_work(q))
    square = roots(y, y)
    fourth = roots(square, square)
    total = jnp.sum(fourth * fourth, axis=(-2, -1))
    return peak[..., 0, 0] * safe_root(total / 2, 8)
