r"""Exact polar factors by decompositions (SVD, eigh, QR) and by products.

All return the *compact* factor: with :math:`X = U \Sigma V^\top` the result is
:math:`\sum u_i v_i^\top` over the singular values above ``rtol`` times the largest,
which is finite and unique for rank-deficient matrices, too.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from optax_matrix._platforms import by_platform
from optax_matrix.linalg._block_jacobi import eigh
from optax_matrix.linalg._derivatives import polar_factor
from optax_matrix.linalg._newton_schulz import newton_schulz
from optax_matrix.linalg._orthonormalize import qr
from optax_matrix.linalg._polar_by_products import polar_by_products
from optax_matrix.linalg._svd import svd
from optax_matrix.linalg.precision import bases, pinned
from optax_matrix.linalg.scale import (
    as_work,
    inverse,
    safe_root,
    unit_peak,
    wide_unit_peak,
)
from optax_matrix.linalg.spectral_norms import norm_bound


def polar_svd(
    x: Float[Array, "*batch m n"],
    *,
    rtol: float | None = None,
) -> Float[Array, "*batch m n"]:
    r"""Compute the polar factor :math:`U V^\top` from the SVD.

    On CUDA, where an SVD takes one matrix at a time, the result is that of
    `polar_products`.

    Args:
        x: Matrices of shape ``(..., m, n)``.
        rtol: Singular values up to ``rtol`` times the largest count as zero. None:
            ten times the machine epsilon of the working precision.

    Returns:
        Matrices of the shape and dtype of ``x``; a zero matrix gives zero.

    Examples:
        >>> polar_svd(jnp.array([[0.0, 4.0], [3.0, 0.0]])).round(3).tolist()
        [[0.0, 1.0], [1.0, 0.0]]
    """
    y, _ = unit_peak(as_work(x))
    cut = _rtol(rtol, y.dtype)
    return polar_factor(pinned(_compact_svd), cut, y).astype(x.dtype)


def polar_eigh(
    x: Float[Array, "*batch m n"],
    *,
    rtol: float | None = None,
) -> Float[Array, "*batch m n"]:
    r"""Compute the polar factor :math:`(X X^\top)^{-1/2} X` by an eigendecomposition.

    This takes one eigendecomposition of the small Gram matrix and is the fastest exact
    kernel for wide and tall matrices. Forming the Gram matrix squares the condition
    number, though: in float32 only singular values above about 1e-3 of the largest are
    resolved, and smaller ones count as zero.

    Args:
        x: Matrices of shape ``(..., m, n)``.
        rtol: Singular values up to ``rtol`` times the largest count as zero. None:
            the square root of ten times the machine epsilon.

    Returns:
        Matrices of the shape and dtype of ``x``; a zero matrix gives zero.

    Examples:
        >>> polar_eigh(jnp.array([[0.0, 4.0], [3.0, 0.0]])).round(3).tolist()
        [[0.0, 1.0], [1.0, 0.0]]
    """
    y, transposed = wide_unit_peak(x)
    cut = _rtol(None, y.dtype) ** 0.5 if rtol is None else rtol
    q = polar_factor(pinned(_compact_eigh), cut, y)
    return (q.mT if transposed else q).astype(x.dtype)


def polar_qr(
    x: Float[Array, "*batch m n"],
    *,
    rtol: float | None = None,
) -> Float[Array, "*batch m n"]:
    r"""Compute the polar factor from a QR of the long side and a small SVD.

    With :math:`X^\top = Q R` the factor is :math:`\mathrm{polar}(R^\top) Q^\top`. It is
    as accurate as :func:`polar_svd`, and the SVD is that of a square matrix of the
    short side. On CUDA the result is that of `polar_products`.

    Args:
        x: Matrices of shape ``(..., m, n)``.
        rtol: As in :func:`polar_svd`.

    Returns:
        Matrices of the shape and dtype of ``x``; a zero matrix gives zero.

    Examples:
        >>> polar_qr(jnp.array([[0.0, 4.0, 0.0], [3.0, 0.0, 0.0]])).round(3).tolist()
        [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]
    """
    y, transposed = wide_unit_peak(x)
    cut = _rtol(rtol, y.dtype)
    q = polar_factor(pinned(_compact_qr), cut, y)
    return (q.mT if transposed else q).astype(x.dtype)


def polar_products(
    x: Float[Array, "*batch m n"],
    *,
    rtol: float | None = None,
) -> Float[Array, "*batch m n"]:
    r"""Compute the polar factor by products alone, for any condition number.

    .. math::
        X \leftarrow a X + (b A + c A^2) X, \qquad A = X X^\top

    with the quintics of `polar_express` for singular values from the level of rounding
    to the largest one: 17 steps in float32. At the end, singular values below ``rtol``
    are removed by the spectral projector
    :math:`\tfrac12 (I + \mathrm{sign}(H - \mathrm{rtol}\, I))`, :math:`H = X U^\top`,
    whose sign is computed in the same way.

    Args:
        x: Matrices of shape ``(..., m, n)``.
        rtol: As in :func:`polar_svd`, but relative to an upper bound on the largest
            singular value, which is too high by a factor of ``m**(1 / 128)`` at most.
            Zero omits the removal; singular values at the level of rounding are then
            mapped to any value in [0, 1].

    Returns:
        Matrices of the shape and dtype of ``x``; a zero matrix gives zero.

    Examples:
        >>> polar_products(jnp.array([[0.0, 4.0], [3.0, 0.0]])).round(3).tolist()
        [[0.0, 1.0], [1.0, 0.0]]

    References:
        Amsel et al., `The Polar Express <https://arxiv.org/abs/2505.16932>`_, 2025, for
        the quintics; the projector is that of spectral divide and conquer.
    """
    y, transposed = wide_unit_peak(x)
    cut = _rtol(rtol, y.dtype)
    q = polar_factor(pinned(_compact_products), cut, y)
    return (q.mT if transposed else q).astype(x.dtype)


def balanced_polar(
    x: Float[Array, "*batch m n"],
    *,
    rounds: int = 2,
    power: ArrayLike = 0.5,
    polar: Callable[[Array], Array] = newton_schulz,
) -> Float[Array, "*batch m n"]:
    r"""Scale the rows of a tall matrix so that its polar factor has rows of equal norm.

    .. math::
        D_1 = \mathrm{diag}(\|X_i\|)^{-1}, \quad U_k = \mathrm{polar}(D_k X), \quad
        D_{k+1} = D_k \, \mathrm{diag}(n / (m \|U_{k,i}\|^2))^{p}

    A matrix with more columns than rows is transposed first. The polar factor of a
    square matrix has rows of equal norm already, and is returned.

    Args:
        x: Matrices of shape ``(..., m, n)``.
        rounds: Number of polar factors; the last one is returned.
        power: The exponent p; less than 0.5 damps the steps.
        polar: Function that returns the polar factor.

    Returns:
        Matrices ``(..., m, n)``. Rows of zeros stay zero.

    Examples:
        >>> import jax.numpy as jnp
        >>> from optax_matrix.linalg import balanced_polar, polar_svd
        >>> x = jnp.array([[4.0, 0.0], [0.0, 2.0], [0.0, 1.0], [0.0, 1.0]])
        >>> jnp.linalg.norm(polar_svd(x), axis=1).round(2).tolist()
        [1.0, 0.81..., 0.40..., 0.40...]
        >>> jnp.linalg.norm(balanced_polar(x, polar=polar_svd), axis=1).round(
        ...     2
        ... ).tolist()
        [1.0, 0.57..., 0.57..., 0.57...]

    References:
        Dewulf et al., `Aurora <https://arxiv.org/abs/2606.27715>`_, 2026, by its
        authors' code.
    """
    dtype = x.dtype
    if x.shape[-2] == x.shape[-1]:
        return polar(x)
    y, transposed = wide_unit_peak(x)  # Wide: the columns are the rows of above.
    y = y * inverse(safe_root(jnp.sum(y * y, axis=-2, keepdims=True)))
    scale = jnp.ones_like(y[..., :1, :])
    for k in range(rounds):
        u = polar(y * scale)
        if k + 1 < rounds:
            squared = jnp.sum(u * u, axis=-2, keepdims=True)
            target = y.shape[-2] / y.shape[-1]
            scale = scale * (target * inverse(squared)) ** power
    return (u.mT if transposed else u).astype(dtype)


def _compact_products(y: Array, cut: float) -> Array:
    if y.shape[-2] > y.shape[-1]:
        return _compact_products(y.mT, cut).mT
    u = polar_by_products(y, bases)
    if cut:
        h = bases(u, y.mT)
        h = (h + h.mT) / 2
        eye = jnp.broadcast_to(jnp.eye(h.shape[-1], dtype=h.dtype), h.shape)
        above = h - cut * norm_bound(h, bases) * eye
        u = (u + bases(polar_by_products(above, bases, symmetric=True), u)) / 2
    return u


def _compact_eigh(y: Array, rtol: float) -> Array:
    w, v = eigh(bases(y, y.mT))
    kept = w > rtol**2 * jnp.max(w, axis=-1, keepdims=True)
    inverse_root = jnp.where(kept, jax.lax.rsqrt(jnp.where(kept, w, 1.0)), 0.0)
    return bases(v * inverse_root[..., None, :], bases(v.mT, y))


def _compact_qr(y: Array, rtol: float) -> Array:
    def by_qr(y: Array) -> Array:
        q, r = qr(y.mT, bases)
        return bases(_by_svd(r.mT, rtol), q.mT)

    return by_platform(by_qr, y, cuda=partial(_compact_products, cut=rtol))


def _compact_svd(x: Array, rtol: float) -> Array:
    # On CUDA the SVD itself is computed from a polar factor. By products, a step of
    # `sumo` without a renewal takes 0.43 of its time on an H200.
    by_products = partial(_compact_products, cut=rtol)
    return by_platform(partial(_by_svd, cut=rtol), x, cuda=by_products)


def _by_svd(x: Array, cut: float) -> Array:
    u, s, vt = svd(x, bases)
    kept = s > cut * jnp.max(s, axis=-1, keepdims=True)
    return bases(u * kept[..., None, :].astype(u.dtype), vt)


def _rtol(rtol: float | None, dtype: jnp.dtype) -> float:
    return 10 * float(jnp.finfo(dtype).eps) if rtol is None else rtol
