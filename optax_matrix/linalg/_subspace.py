"""Leading left singular vectors and eigenvectors, by small decompositions."""

import numbers
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, Key

from optax_matrix._mesh import vary_like
from optax_matrix._platforms import by_platform
from optax_matrix.linalg._derivatives import singular_vectors
from optax_matrix.linalg._eigenbasis import eigenbasis, with_positive_peaks
from optax_matrix.linalg._orthonormalize import (
    Orthonormalize,
    cholesky_qr,
    qr as qr_decomposition,
)
from optax_matrix.linalg._svd import svd
from optax_matrix.linalg.precision import bases, current, pinned, project
from optax_matrix.linalg.products import Product
from optax_matrix.linalg.random import normal
from optax_matrix.linalg.scale import as_work, kept_apart, peak_or_one, unit_peak


def range_finder(
    x: Float[Array, "*batch m n"],
    size: int,
    key: Key[Array, "*keys"],
    *,
    iterations: int = 3,
    qr: Orthonormalize = cholesky_qr,
) -> Float[Array, "*batch m size"]:
    r"""Approximate the span of the leading left singular vectors.

    .. math::
        Q \leftarrow \mathrm{qr}(X X^\top Q)

    is repeated, started from normal columns. Directions whose singular values are below
    the square root of the machine epsilon, relative to the largest one, are lost in
    rounding; other orthonormal columns take their place.

    Args:
        x: Matrices of shape ``(..., m, n)``.
        size: Number of columns, at most the shorter side.
        key: A key for each matrix, or one (`jax.random.key`) for all, with which all
            matrices have the same initial columns.
        iterations: Number of repetitions.
        qr: Kernel that makes columns orthonormal.

    Returns:
        Orthonormal columns ``(..., m, size)`` in the dtype of ``x``.

    Raises:
        ValueError: If ``size`` exceeds the shorter side.

    Examples:
        >>> x = jnp.outer(jnp.array([3.0, 4.0]), jnp.array([1.0, 2.0, 2.0]))
        >>> abs(range_finder(x, 1, jax.random.key(0))).round(3).tolist()
        [[0.6...], [0.8...]]

    References:
        Halko, Martinsson and Tropp, `Finding structure with randomness
        <https://arxiv.org/abs/0909.4061>`_, 2011, Algorithm 4.4, started on the other
        side: there is one QR per repetition and only one to compile.
    """
    return _range(as_work(x), size, key, iterations, qr)[0].astype(x.dtype)


def randomized_left_vectors(
    x: Float[Array, "*batch m n"],
    rank: int,
    key: Key[Array, "*keys"],
    *,
    oversampling: int = 8,
    iterations: int = 3,
    qr: Orthonormalize = cholesky_qr,
) -> Float[Array, "*batch m rank"]:
    """Approximate the leading left singular vectors by `range_finder`.

    The largest decomposition is an ``eigh`` of side ``rank + oversampling``.

    Args:
        x: Matrices of shape ``(..., m, n)``.
        rank: Number of vectors, at most the shorter side.
        key: As in `range_finder`.
        oversampling: Number of columns of the range beyond ``rank``.
        iterations: As in `range_finder`.
        qr: Kernel that makes columns orthonormal.

    Returns:
        Orthonormal columns ``(..., m, rank)`` in the dtype of ``x``, in descending
        order of their singular values. The largest entry of each column is positive, so
        that columns keep their sign from one gradient to the next. A zero matrix gives
        some orthonormal columns.

    Raises:
        ValueError: If ``rank`` exceeds the shorter side.

    Examples:
        >>> x = jnp.diag(jnp.array([1.0, 5.0, 0.1]))
        >>> u = randomized_left_vectors(x, 1, jax.random.key(0))
        >>> abs(u[:, 0].round(3)).tolist()
        [0.0, 1.0, 0.0]
    """
    y = as_work(x)
    size = max(rank, min(rank + oversampling, *y.shape[-2:]))
    q, scale = _range(y, size, key, iterations, qr)
    b = project((scale * q).mT, y)
    _, w = eigenbasis(project(b, b.mT))
    return with_positive_peaks(project(q, w[..., :rank])).astype(x.dtype)


def left_vectors(
    x: Float[Array, "*batch m n"], rank: int
) -> Float[Array, "*batch m rank"]:
    """Compute the leading left singular vectors by a QR of the long side and an SVD.

    Args:
        x: Matrices of shape ``(..., m, n)``.
        rank: Number of vectors, at most the shorter side.

    Returns:
        Orthonormal columns ``(..., m, rank)`` in the dtype of ``x``, in descending
        order of their singular values; the largest entry of each column is positive.

    Examples:
        >>> left_vectors(jnp.diag(jnp.array([1.0, 5.0, 0.1])), 1).tolist()
        [[0.0], [1.0], [0.0]]
    """
    y, _ = unit_peak(as_work(x))
    u = singular_vectors(pinned(_thin_svd), y)
    return with_positive_peaks(u[..., :rank]).astype(x.dtype)


def _thin_svd(y: Array) -> tuple[Array, Array, Array]:
    m, n = y.shape[-2:]
    q, r = qr_decomposition(y if m > n else y.mT, bases)
    u, s, vt = svd(r if m > n else r.mT, bases)
    return (bases(q, u), s, vt) if m > n else (u, s, bases(vt, q.mT))


def subspace_iteration(
    basis: Float[Array, "*batch m r"],
    core: Float[Array, "*batch r r"] | None,
    x: Float[Array, "*batch m n"],
    *,
    scale: Float[ArrayLike, "*batch 1 1"] = 1.0,
    iterations: Int[ArrayLike, "*batch"] = 1,
    most: int = 10,
    qr: Orthonormalize = cholesky_qr,
) -> tuple[Float[Array, "*batch r"], Float[Array, "*batch m r"]]:
    r"""Move a basis towards the leading eigenvectors of a factored matrix.

    .. math::
        Q = U A U^\top + s^2 X X^\top, \qquad V = \mathrm{qr}(Q U), \qquad
        V^\top Q V = W \Lambda W^\top, \qquad U \leftarrow V W

    With more ``iterations``, :math:`V \leftarrow \mathrm{qr}(Q V)` is repeated before
    the last two formulas. The ``m x m`` matrix Q is not formed.

    Args:
        basis: Columns U, ``(..., m, r)``; orthonormal or not.
        core: Symmetric A, ``(..., r, r)``; None for zero.
        x: Matrices X, ``(..., m, n)``.
        scale: Factors s, one or ``(..., 1, 1)``; the entries of s X, like those of
            ``core``, must be of moderate size. They multiply the small factors of
            products, so that no scaled copy of X is kept.
        iterations: Number of times that V is computed, at least one; may differ from
            matrix to matrix and may be traced.
        most: Largest number of iterations if it is traced; reverse-mode
            differentiation allocates memory for as many.
        qr: Kernel that makes columns orthonormal.

    Returns:
        The Ritz values :math:`\Lambda` in descending order, and the Ritz vectors in the
        dtype of ``basis``. If ``Q U`` is zero, the vectors stay in the span of U.

    Examples:
        >>> x = jnp.diag(jnp.array([1.0, 3.0, 2.0]))
        >>> values, u = subspace_iteration(jnp.eye(3)[:, 1:], None, x)
        >>> values.round(3).tolist()
        [9.0, 4.0]

    References:
        Structured Fisher (Alice), Algorithm 10. As printed there, the result ``EVD(V)``
        is the eigenvectors of the r x r matrix; U times these is meant.
    """
    u = as_work(basis)
    y = x.astype(u.dtype)
    most = int(iterations) if isinstance(iterations, numbers.Integral) else most
    number = jnp.asarray(iterations)[..., None, None]
    scale = jnp.asarray(scale, u.dtype)
    matrices, dot = (core, y, scale), current().project
    v = _iterated(
        pinned(qr), dot, most, number, vary_like(u, (matrices, number)), matrices
    )
    b = dot((scale * v).mT, y)
    s = dot(b, b.mT)
    if core is not None:
        c = dot(kept_apart(v).mT, u)  # See `_step`.
        s = s + dot(dot(c, core.astype(u.dtype)), c.mT)
    values, w = eigenbasis(s)
    return values, dot(v, w).astype(basis.dtype)


@partial(jax.custom_jvp, nondiff_argnums=(0, 1, 2))
def _iterated(qr, dot, most, number: Array, u: Array, matrices: tuple) -> Array:
    def iterated(most, number: Array, u: Array, matrices: tuple) -> Array:
        return jax.lax.fori_loop(0, most, _step(qr, dot, number, u, *matrices), u)

    def as_needed(number: Array, *arrays: Any) -> Array:
        return iterated(jnp.minimum(jnp.max(number), most), number, *arrays)

    # On CUDA the host would have to read how many there are.
    return by_platform(as_needed, number, u, matrices, cuda=partial(iterated, most))


@_iterated.defjvp
def _iterated_jvp(qr, dot, most, primals, tangents):
    # With a fixed number of iterations, which reverse-mode differentiation needs.
    number, *arrays = primals

    def iterated(u, matrices):
        step = _step(qr, dot, number, u, *matrices)
        due = lambda i, v: jax.lax.cond(i < jnp.max(number), step, lambda _, v: v, i, v)
        return jax.lax.fori_loop(0, most, due, u)

    return jax.jvp(iterated, tuple(arrays), tuple(tangents[1:]))


def _step(qr, dot, number: Array, u: Array, core: Array | None, y, scale) -> Callable:
    # On CUDA, XLA merges products that share a factor. Without `kept_apart` it would
    # copy all of y to multiply U' and y' by V at once.
    def step(i: Array, v: Array) -> Array:
        h = _times_square(y, scale, v, dot)
        if core is not None:
            h = h + dot(u, dot(core.astype(u.dtype), dot(u.mT, kept_apart(v))))
        return jnp.where(i < number, qr(unit_peak(h)[0], previous=v), v)

    return step


def overlap(
    new: Float[Array, "*batch m r"],
    old: Float[Array, "*batch m r"],
) -> Float[Array, "*batch r r"]:
    r"""Compute :math:`C = U_{new}^\top U_{old}`, which changes coordinates.

    Args:
        new: Orthonormal columns.
        old: The same.

    Returns:
        Matrices ``(..., r, r)``: ``C @ m`` are the coordinates, in the new basis, of
        the projection of ``old @ m`` onto its span.

    Examples:
        >>> overlap(jnp.eye(3)[:, :2], jnp.eye(3)[:, 1:]).tolist()
        [[0.0, 0.0], [1.0, 0.0]]
    """
    return project(new.mT, old)


def _times_square(y: Array, scale: Array, v: Array, dot: Product) -> Array:
    """``(scale y) (scale y)' v``, without a scaled or transposed copy of y."""
    return dot(y, (scale * dot((scale * v).mT, y)).mT)


def _range(
    y: Array, size: int, key: Array, iterations: int, qr: Orthonormalize
) -> tuple[Array, Array]:
    """Columns that span the range, and the factors that y was multiplied by."""
    m, n = y.shape[-2:]
    if size > min(m, n):
        raise ValueError(
            f"`size` must be at most the shorter side, got {size} for matrices of "
            f"{m} x {n}; clip it."
        )
    q, scale = normal(key, y.shape[:-2], m, size, y.dtype), 1 / peak_or_one(y)
    step = lambda _, q: qr(_times_square(y, scale, q, project))
    return jax.lax.fori_loop(0, iterations, step, vary_like(q, y)), scale
