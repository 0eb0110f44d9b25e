"""Bases compared with one another."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from optax_matrix.linalg.products import full_dot
from optax_matrix.linalg.scale import as_work, column_norms, safe_divide


def subspace_overlap(u: ArrayLike, v: ArrayLike) -> jax.Array:
    r"""How much two subspaces have in common: the mean squared cosine of their angles.

    .. math::
        \|U^\top V\|_F^2 / \min(r, s)

    Costs one ``r x m`` by ``m x s`` product.

    Args:
        u: Orthonormal columns ``(..., m, r)``.
        v: Orthonormal columns ``(..., m, s)``.

    Returns:
        One number per pair: 0 if the subspaces are orthogonal, 1 if one contains the
        other.

    Raises:
        ValueError: If the numbers of rows differ; if an array has fewer than two axes
            or no floating dtype.

    Examples:
        >>> import jax.numpy as jnp
        >>> eye = jnp.eye(4)
        >>> float(subspace_overlap(eye[:, :2], eye[:, 1:3]))
        0.5

    References:
        Structured Fisher (Alice), Section 7.2, for a subspace instead of single
        vectors (`eigenvector_cosines`).
    """
    u, v = _same_rows("v", u, v)
    common = jnp.sum(jnp.square(full_dot(u.mT, v)), axis=(-2, -1))
    return common / max(1, min(u.shape[-1], v.shape[-1]))


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
    u, v = _same_rows("v", u, v)
    if u.shape != v.shape:
        raise ValueError(
            f"`v` must have the shape {u.shape} of `u`, got {v.shape}; compare whole "
            "subspaces of different sizes with subspace_overlap."
        )
    u = safe_divide(u, column_norms(u)[..., None, :])
    v = safe_divide(v, column_norms(v)[..., None, :])
    return jnp.abs(jnp.sum(u * v, axis=-2))


def _same_rows(name: str, x: ArrayLike, y: ArrayLike) -> tuple[jax.Array, jax.Array]:
    """Both in the working precision; the second is named in the error message."""
    x, y = as_work(jnp.asarray(x)), as_work(jnp.asarray(y))
    if x.shape[-2] != y.shape[-2]:
        raise ValueError(
            f"`{name}` must have {x.shape[-2]} rows, as the other argument of shape "
            f"{x.shape} has, got shape {y.shape}; transpose one of them if the basis "
            "is of the other side."
        )
    return x, y
