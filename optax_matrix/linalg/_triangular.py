"""Inverses of triangular matrices by products of blocks."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from optax_matrix.linalg.lapack import solve_lower
from optax_matrix.linalg.products import full_dot

_BLOCK = 128


def inverse_lower(l: Float[Array, "*batch n n"]) -> Float[Array, "*batch n n"]:
    r"""Invert lower triangular matrices.

    .. math::
        \begin{pmatrix} A & \\ C & B \end{pmatrix}^{-1} =
        \begin{pmatrix} A^{-1} & \\ -B^{-1} C A^{-1} & B^{-1} \end{pmatrix}

    Both diagonal blocks are inverted as one stack, recursively, so that a single
    triangular solve of side at most 128 remains for every size; the rest is products.
    For a side of 2048, compilers for TPU take 2 seconds for this and 19 seconds for a
    triangular solve.

    Args:
        l: Lower triangular matrices ``(..., n, n)`` in the working precision; entries
            above the diagonal must be zero.

    Returns:
        Their inverses, lower triangular; not finite if a diagonal entry is zero.

    Examples:
        >>> inverse_lower(jnp.array([[2.0, 0.0], [1.0, 4.0]])).tolist()
        [[0.5, 0.0], [-0.125, 0.25]]
    """
    n = l.shape[-1]
    levels = max(0, (-(-n // _BLOCK) - 1).bit_length())
    side = -(-n // 2**levels) * 2**levels
    eye = jnp.eye(side, dtype=l.dtype)
    if side > n:
        widths = [(0, 0)] * (l.ndim - 2) + [(0, side - n)] * 2
        l = jnp.pad(l, widths) + eye.at[:n, :n].set(0)[(None,) * (l.ndim - 2)]
    return _inverse(l, levels)[..., :n, :n]


def _inverse(l: Array, levels: int) -> Array:
    if levels == 0:
        eye = jnp.broadcast_to(jnp.eye(l.shape[-1], dtype=l.dtype), l.shape)
        return solve_lower(l, eye)
    h = l.shape[-1] // 2
    halves = jnp.stack([l[..., :h, :h], l[..., h:, h:]])
    a, b = _inverse(halves, levels - 1)
    c = -full_dot(b, full_dot(l[..., h:, :h], a))
    top = jnp.concatenate([a, jnp.zeros_like(c)], axis=-1)
    return jnp.concatenate([top, jnp.concatenate([c, b], axis=-1)], axis=-2)
