"""Random columns of the orthogonal complement of a subspace."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from optax_matrix._mesh import unsplit, vary_like
from optax_matrix._platforms import by_platform, in_turn, is_large_stack
from optax_matrix.linalg._orthonormalize import Orthonormalize, cholesky_qr
from optax_matrix.linalg.precision import bases
from optax_matrix.linalg.random import for_each, normal


def complement_columns(
    basis: Float[Array, "*batch m r"],
    count: int,
    key: Key[Array, "*keys"],
    *,
    leading: int | None = None,
) -> Float[Array, "*batch m count"]:
    r"""Draw ``count`` columns, without replacement, of a basis of the complement.

    The basis consists of the last ``m - r`` columns of Q in the complete QR of U that
    Householder reflections give. Most of them are nearly unit vectors. Only the drawn
    ones are computed, ``(..., m, count)``,

    .. math::
        Q_{\cdot j} = e_j + (U - E S)\, S\, (U_1 - S)^{-\top} U_{j \cdot}^\top

    where :math:`U_1` is the upper square block of U, E the first r columns of the
    identity, and S a diagonal of signs, each the opposite of that of its pivot in the
    elimination of :math:`U_1 - S`: the compact form :math:`I - Y T Y^\top` of r
    reflections (Ballard et al., `Reconstructing Householder vectors
    <https://doi.org/10.1016/j.jpdc.2015.06.003>`_, 2015), without the vectors. With
    ``leading`` only the first columns of U are excluded from the draw. The key is
    typed: one for each matrix, or one for all.
    """
    m, r = basis.shape[-2:]
    kept = r if leading is None else leading
    _check_count(m - kept, count)
    draw = lambda key: kept + jax.random.permutation(key, m - kept)[:count]
    drawn = for_each(draw, key.ndim)(key)
    at = jnp.broadcast_to(unsplit(drawn), (*basis.shape[:-2], count))
    large = is_large_stack(basis, at)
    found = by_platform(
        _columns_of_q, basis, at, cpu=in_turn(_columns_of_q) if large else None
    )
    if kept == r:
        return found
    own = jnp.take_along_axis(basis, jnp.minimum(at, r - 1)[..., None, :], axis=-1)
    return jnp.where((at < r)[..., None, :], own, found)


def complement_subspace(
    basis: Float[Array, "*batch m r"],
    count: int,
    key: Key[Array, "*keys"],
    *,
    qr: Orthonormalize = cholesky_qr,
) -> Float[Array, "*batch m count"]:
    r"""Draw a uniformly random subspace of the complement, ``(..., m, count)``.

    .. math::
        S = \mathrm{qr}((I - U U^\top) \Omega)

    with normal :math:`\Omega`. The projection and the QR are done twice, so that S is
    orthogonal to U up to rounding.
    """
    _check_count(basis.shape[-2] - basis.shape[-1], count)
    x = normal(key, basis.shape[:-2], basis.shape[-2], count, basis.dtype)
    step = lambda _, x: qr(x - bases(basis, bases(basis.mT, x)))
    return jax.lax.fori_loop(0, 2, step, vary_like(x, basis))


def _columns_of_q(u: Array, at: Array) -> Array:
    r"""Compute columns of :math:`Q = I - A A_1^{-\top} A^\top`, :math:`A = E - U S`."""
    m, r = u.shape[-2:]
    rows = jnp.take_along_axis(u, at[..., :, None], axis=-2)
    x, signs = _eliminated(u[..., :r, :], rows.mT)
    eye = jnp.broadcast_to(jnp.eye(m, r, dtype=u.dtype), u.shape)
    a = u - signs[..., None, :] * eye
    each = jnp.arange(m).reshape((1,) * (u.ndim - 2) + (m, 1))
    e = (each == at[..., None, :]).astype(u.dtype)
    return e + bases(a, signs[..., :, None] * x)


def _eliminated(top: Array, right: Array) -> tuple[Array, Array]:
    """Solve ``(top - S).mT @ x = right`` by elimination, which determines the signs S.

    No pivot is smaller than one, so rows need not be exchanged.
    """
    r = top.shape[-1]
    at = lambda x, j, axis: jax.lax.dynamic_index_in_dim(x, j, axis, keepdims=False)

    def step(j: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        w, signs = carry
        here = jnp.arange(r) == j
        row, column = at(w, j, -2), jnp.where(here, 0, at(w, j, -1))
        pivot = at(row, j, -1)
        sign = jnp.where(pivot < 0, 1, -1).astype(w.dtype)
        row = row / (pivot - sign)[..., None]
        w = jnp.where(here[:, None], row[..., None, :], w)
        w = w - column[..., :, None] * row[..., None, :]
        return w, jnp.where(here, sign[..., None], signs)

    w = jnp.concatenate([top.mT, right], axis=-1)
    w, signs = jax.lax.fori_loop(0, r, step, (w, 0 * w[..., 0, :r]))
    return w[..., r:], signs


def _check_count(dimension: int, count: int) -> None:
    if count > dimension:
        raise ValueError(
            f"`count` must be at most {dimension}, the dimension of the complement, "
            f"got {count}."
        )
