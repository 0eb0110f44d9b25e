"""Random matrices, one key for each, so that they do not depend on their neighbours."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, Float, Key

from optax_matrix.linalg._orthonormalize import (
    Orthonormalize,
    cholesky_qr,
    qr_householder,
)
from optax_matrix.linalg._products import full_dot


def seeded(seed: ArrayLike) -> Key[Array, ""]:
    """Make a key whose draws do not depend on neighbours in a batch.

    Those of JAX's other generators, such as ``rbg``, do under `jax.vmap`.

    Args:
        seed: An integer.

    Returns:
        A key of Threefry, whatever `jax_default_prng_impl` says.
    """
    return jax.random.key(seed, impl="threefry2x32")


def normal(
    key: Key[Array, "*keys"], batch: tuple[int, ...], m: int, n: int, dtype: DTypeLike
) -> Float[Array, "*batch m n"]:
    """Draw normal matrices, drawn in float32 in every dtype.

    Args:
        key: Typed keys of shape ``batch``, or a single one with which all are equal.
        batch: The batch axes.
        m: Number of rows.
        n: Number of columns.
        dtype: Dtype of the result.

    Returns:
        Matrices of shape ``(*batch, m, n)``.
    """

    def draw(key):
        return jax.random.normal(key, (m, n), jnp.float32).astype(dtype)

    for _ in range(key.ndim):
        draw = jax.vmap(draw)
    return jnp.broadcast_to(draw(key), (*batch, m, n))


def folded(key: Key[Array, ""], ids: Any) -> Key[Array, "*batch"]:
    """Fold identities into a key, so that each matrix has its own.

    Args:
        key: A typed key.
        ids: Unsigned integers ``(..., k)``; an empty row gives the key itself.

    Returns:
        Keys of shape ``(...)``.
    """
    ids = jnp.asarray(ids, jnp.uint32)

    def one(numbers):
        out = key
        for number in numbers:
            out = jax.random.fold_in(out, number)
        return out

    for _ in range(ids.ndim - 1):
        one = jax.vmap(one)
    return one(ids)


def complement_columns(
    basis: Float[Array, "*batch m r"],
    count: int,
    key: Key[Array, "*keys"],
    *,
    leading: int | None = None,
) -> Float[Array, "*batch m count"]:
    """Draw columns, without replacement, of a basis of the orthogonal complement.

    The basis is that of a full QR, ``m x m``: :func:`complement_subspace` is cheaper.

    Args:
        basis: Orthonormal columns ``(..., m, r)``.
        count: Number of columns to draw, at most ``m - r`` (``m - leading``).
        key: A typed key for each matrix, or one for all.
        leading: Number of columns of the basis that are not drawn; None for all r.

    Returns:
        Orthonormal columns ``(..., m, count)``.

    Raises:
        ValueError: If there are fewer.

    Examples:
        >>> u = complement_columns(jnp.eye(3)[:, :2], 1, jax.random.key(0))
        >>> abs(u).tolist()
        [[0.0], [0.0], [1.0]]
    """
    kept = basis.shape[-1] if leading is None else leading
    _check_count(basis.shape[-2] - kept, count)
    columns = _completed(basis)[..., kept:]
    rest = columns.shape[-1]

    def draw(key):
        return jax.random.permutation(key, rest)[:count]

    for _ in range(key.ndim):
        draw = jax.vmap(draw)
    at = jnp.broadcast_to(draw(key), (*basis.shape[:-2], count))
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

    with normal :math:`\Omega`; done twice, so that S is orthogonal to rounding.

    Args:
        basis: Orthonormal columns U, ``(..., m, r)``.
        count: Number of columns to draw, at most ``m - r``.
        key: A typed key for each matrix, or one for all.
        qr: What makes columns orthonormal.

    Returns:
        Orthonormal columns ``(..., m, count)``.

    Raises:
        ValueError: If the complement has fewer.

    Examples:
        >>> u = complement_subspace(jnp.eye(3)[:, :2], 1, jax.random.key(0))
        >>> abs(u.round(3)).tolist()
        [[0.0], [0.0], [1.0]]
    """
    _check_count(basis.shape[-2] - basis.shape[-1], count)
    x = normal(key, basis.shape[:-2], basis.shape[-2], count, basis.dtype)
    step = lambda _, x: qr(x - full_dot(basis, full_dot(basis.mT, x)))
    return jax.lax.fori_loop(0, 2, step, x)


def _completed(basis: Array) -> Array:
    """All columns of a full QR, of which the basis is the first."""
    m, r = basis.shape[-2:]
    eye = jnp.eye(m, dtype=basis.dtype)[:, r:]
    rest = jnp.broadcast_to(eye, (*basis.shape[:-2], m, m - r))
    return qr_householder(jnp.concatenate([basis, rest], axis=-1))


def _check_count(dimensions: int, count: int) -> None:
    if count > dimensions:
        raise ValueError(
            f"`count` must be at most the {dimensions} dimensions of the complement, "
            f"got {count}."
        )
