"""Random columns of the orthogonal complement of a subspace."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from optax_matrix.linalg._orthonormalize import (
    Orthonormalize,
    cholesky_qr,
    qr_householder,
)
from optax_matrix.linalg.products import full_dot
from optax_matrix.linalg.random import for_each, normal
from optax_matrix.varying import vary_like


def complement_columns(
    basis: Float[Array, "*batch m r"],
    count: int,
    key: Key[Array, "*keys"],
    *,
    leading: int | None = None,
) -> Float[Array, "*batch m count"]:
    """Draw columns, without replacement, from a basis of the orthogonal complement.

    The basis is that of a full QR, ``m x m``: :func:`complement_subspace` is cheaper.

    Args:
        basis: Orthonormal columns ``(..., m, r)``.
        count: Number of columns to draw, at most ``m - r`` (``m - leading``).
        key: A typed key for each matrix, or one for all.
        leading: Only the first ``leading`` columns of ``basis`` are excluded from the
            draw. None excludes all r.

    Returns:
        Orthonormal columns ``(..., m, count)``.

    Raises:
        ValueError: If ``count`` exceeds the dimension of the complement.

    Examples:
        >>> u = complement_columns(jnp.eye(3)[:, :2], 1, jax.random.key(0))
        >>> abs(u).tolist()
        [[0.0], [0.0], [1.0]]
    """
    kept = basis.shape[-1] if leading is None else leading
    _check_count(basis.shape[-2] - kept, count)
    columns = _completed(basis)[..., kept:]
    rest = columns.shape[-1]
    draw = lambda key: jax.random.permutation(key, rest)[:count]
    drawn = for_each(draw, key.ndim)(key)
    at = jnp.broadcast_to(drawn, (*basis.shape[:-2], count))
    return jnp.take_along_axis(columns, at[..., None, :], axis=-1)


def complement_subspace(
    basis: Float[Array, "*batch m r"],
    count: int,
    key: Key[Array, "*keys"],
    *,
    qr: Orthonormalize = cholesky_qr,
) -> Float[Array, "*batch m count"]:
    r"""Draw a uniformly random subspace of the orthogonal complement.

    .. math::
        S = \mathrm{qr}((I - U U^\top) \Omega)

    with normal :math:`\Omega`. The projection and the QR are done twice, so that S is
    orthogonal to U up to rounding.

    Args:
        basis: Orthonormal columns U, ``(..., m, r)``.
        count: Dimension of the subspace, at most ``m - r``.
        key: A typed key for each matrix, or one for all.
        qr: Kernel that makes columns orthonormal.

    Returns:
        Orthonormal columns ``(..., m, count)``.

    Raises:
        ValueError: If ``count`` exceeds the dimension of the complement.

    Examples:
        >>> u = complement_subspace(jnp.eye(3)[:, :2], 1, jax.random.key(0))
        >>> abs(u.round(3)).tolist()
        [[0.0], [0.0], [1.0]]
    """
    _check_count(basis.shape[-2] - basis.shape[-1], count)
    x = normal(key, basis.shape[:-2], basis.shape[-2], count, basis.dtype)
    step = lambda _, x: qr(x - full_dot(basis, full_dot(basis.mT, x)))
    return jax.lax.fori_loop(0, 2, step, vary_like(x, basis))


def _completed(basis: Array) -> Array:
    """Complete a basis to one of the whole space, by a full QR."""
    m, r = basis.shape[-2:]
    eye = jnp.eye(m, dtype=basis.dtype)[:, r:]
    rest = jnp.broadcast_to(eye, (*basis.shape[:-2], m, m - r))
    return qr_householder(jnp.concatenate([basis, rest], axis=-1))


def _check_count(dimension: int, count: int) -> None:
    if count > dimension:
        raise ValueError(
            f"`count` must be at most {dimension}, the dimension of the complement, "
            f"got {count}."
        )
