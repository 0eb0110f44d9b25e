"""Measures of rows and columns: no decompositions, a product at most."""

from typing import Literal

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from optax_matrix._arguments import checked
from optax_matrix.linalg.products import full_dot
from optax_matrix.linalg.scale import as_work, column_norms, safe_divide, unit_peak


def orthogonality_error(x: ArrayLike) -> jax.Array:
    r"""Distance of the shorter side from orthonormality.

    .. math::
        e_{orth} = \|X^\top X - I\|_F / \|I\|_F

    with :math:`X X^\top` for matrices with fewer rows than columns. Costs one product
    of the matrix and its transpose.

    Args:
        x: Matrices ``(..., m, n)``.

    Returns:
        One number per matrix, at least float32; 1 for a zero matrix.

    Raises:
        ValueError: If ``x`` has fewer than two axes or no floating dtype.

    Examples:
        >>> import jax.numpy as jnp
        >>> float(orthogonality_error(jnp.array([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]])))
        2.12...

    References:
        POET, Section 5 (approximation error), Figures 8 and 21 to 23.
    """
    x = as_work(jnp.asarray(x))
    x = x.mT if x.shape[-2] > x.shape[-1] else x
    gram = full_dot(x, x.mT)
    error = gram - jnp.broadcast_to(jnp.eye(x.shape[-2], dtype=x.dtype), gram.shape)
    return jnp.sqrt(jnp.mean(jnp.sum(error * error, axis=-1), axis=-1))


@checked
def norm_spread(x: ArrayLike, *, side: Literal["out", "in"] = "out") -> jax.Array:
    r"""The largest norm of a row (or column) divided by the smallest one.

    .. math::
        \max_i \|x_i\|_2 / \min_i \|x_i\|_2

    Costs one pass over the entries.

    Args:
        x: Matrices ``(..., m, n)``.
        side: ``"out"`` for rows, ``"in"`` for columns.

    Returns:
        One number per matrix, at least 1; infinity if a row (column) is zero.

    Raises:
        ValueError: If ``side`` is none of these; if ``x`` has fewer than two axes or no
            floating dtype.

    Examples:
        >>> import jax.numpy as jnp
        >>> x = jnp.array([[3.0, 4.0], [0.0, 1.0]])
        >>> float(norm_spread(x)), round(float(norm_spread(x, side="in")), 3)
        (5.0, 1.374)

    References:
        MuonEq, Section 3.2 (marginal scale mismatch); ARO, Section 5.1 (Sinkhorn).
    """
    x, _ = unit_peak(as_work(jnp.asarray(x)))
    norms = column_norms(x.mT if side == "out" else x)
    smallest = jnp.min(norms, axis=-1)
    ratio = jnp.max(norms, axis=-1) / jnp.where(smallest == 0, 1, smallest)
    return jnp.where(smallest == 0, jnp.inf, ratio)


def eigenvector_cosines(u: ArrayLike, v: ArrayLike) -> jax.Array:
    r"""The cosine of the angle between columns of the same index, without its sign.

    .. math::
        c_i = |u_i^\top v_i| / (\|u_i\| \|v_i\|)

    Costs one pass over the entries. If the columns are in descending order of their
    eigenvalues, values near 1 mean that the eigenvectors are stable.

    Args:
        u: Columns ``(..., m, r)``.
        v: Columns of the same shape.

    Returns:
        Cosines ``(..., r)``; 0 for a zero column.

    Raises:
        ValueError: If the shapes differ; if an array has fewer than two axes or no
            floating dtype.

    Examples:
        >>> import jax.numpy as jnp
        >>> eigenvector_cosines(jnp.eye(2), jnp.array([[-1.0, 3.0], [0.0, 4.0]]))
        Array([1. , 0.8], dtype=float32)

    References:
        Structured Fisher (Alice), Figure 6.
    """
    u, v = as_work(jnp.asarray(u)), as_work(jnp.asarray(v))
    if u.shape != v.shape:
        raise ValueError(
            f"`v` must have the shape {u.shape} of `u`, got {v.shape}; pass as many "
            "columns of both bases."
        )
    u = safe_divide(u, column_norms(u)[..., None, :])
    v = safe_divide(v, column_norms(v)[..., None, :])
    return jnp.abs(jnp.sum(u * v, axis=-2))
