"""Orthonormal columns: the Q of a QR decomposition whose R has a positive diagonal.

:func:`qr_householder` and :func:`cholesky_qr` compute the same matrix and have the
signature of :class:`Orthonormalize`, so that a block can use either.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from optax_matrix._arguments import PositiveInt, checked
from optax_matrix._platforms import by_platform, can_loop, in_turn, is_large_stack
from optax_matrix._thresholds import Thresholds
from optax_matrix.linalg import lapack
from optax_matrix.linalg._cholesky_passes import cholesky_passes
from optax_matrix.linalg._derivatives import q_factor
from optax_matrix.linalg.precision import of_columns, pinned
from optax_matrix.linalg.products import Product, full_dot, traced_once
from optax_matrix.linalg.scale import (
    as_work,
    check_matrices,
    is_usable,
    unit_peak,
    work_dtype,
)

_QR_SHIFT = 1e-7  # Of `qr`.
QRFallback = Literal["previous", "householder"]


@runtime_checkable
class Orthonormalize(Protocol):
    """A kernel that makes columns orthonormal, as Gram-Schmidt does.

    The first k columns of the result span the same space as those of the input, for
    every k, and each column has a positive component along the part of its input column
    that is orthogonal to the columns before. A zero matrix gives ``previous``.
    """

    def __call__(self, x: Array, /, *, previous: Array | None = None) -> Array: ...


def qr_householder(
    x: Float[Array, "*batch m n"],
    *,
    previous: Float[Array, "*batch m n"] | None = None,
) -> Float[Array, "*batch m n"]:
    r"""Compute Q of :math:`X = QR` with a positive diagonal of R, by reflections.

    The result is orthonormal up to rounding for every input. Columns that depend
    linearly on the others are replaced by arbitrary ones. On CUDA, and on a TPU for
    more than 1024 columns, the passes of :func:`cholesky_qr` compute it instead: on
    CUDA the reflections of a batch run one matrix after another, and compilers for TPU
    take 72 seconds for the reflections of side 2048.

    Args:
        x: Matrices of shape ``(..., m, n)`` with ``m >= n``.
        previous: Orthonormal columns, of the shape of ``x``, that are returned for a
            matrix that is zero or not finite. None: the identity for a zero matrix, NaN
            for one that is not finite.

    Returns:
        Matrices of the shape and dtype of ``x``.

    Raises:
        ValueError: If there are more columns than rows.

    Examples:
        >>> print(qr_householder(jnp.array([[3.0, -2.0], [4.0, 4.0]])).round(3))
        [[ 0.6 -0.8]
         [ 0.8  0.6]]
    """
    return q_factor(pinned(_qr_householder), x, previous)


@checked
def cholesky_qr(
    x: Float[Array, "*batch m n"],
    *,
    previous: Float[Array, "*batch m n"] | None = None,
    shift: ArrayLike = 1e-7,
    passes: PositiveInt | None = None,
    fallback: QRFallback = "previous",
) -> Float[Array, "*batch m n"]:
    r"""Compute Q of :math:`X = QR` with a positive diagonal of R, by Cholesky.

    One pass, on columns scaled to unit norm (which does not change Q),

    .. math::
        L L^\top = X^\top X + s I, \qquad X \leftarrow X L^{-\top},

    is repeated until the columns are nearly orthonormal: once for condition numbers up
    to 1e2, twice up to 1e5, three times or more beyond. The remaining part :math:`U` of
    the Gram matrix above the diagonal is removed by :math:`X \leftarrow X (I - U)`, up
    to its square, which is rounding.

    Each matrix has its own shift s and number of passes. If its Cholesky factor is not
    finite, the pass is repeated with 100 times the shift. A zero column is replaced by
    the column of ``previous``. A column that still depends linearly on the others in
    the third pass is replaced by a random one. The result is thus orthonormal for
    rank-deficient matrices, too.

    On CUDA the host would have to wait for each pass to decide on the next. There every
    matrix has four passes, or ``passes``, and a shift of at least twice the rounding of
    its Gram matrix; the first two passes replace columns that depend on others by
    random ones. This was tried on a CPU with sides of 32 to 512. The entries of
    :math:`Q^\top Q - I` were at most 1e-6 for all kinds of input except Hilbert's
    matrix and Kahan's, which give ``previous``. The error was that of the adaptive
    passes.

    Measured in float32, for sides up to 256: the entries of :math:`Q^\top Q - I` are at
    most 4e-7 for every kind of input, singular matrices included (Householder: 6e-7),
    and the error relative to the float64 result is at most that of Householder, 1e-9 to
    9e-9 times the condition number. A single pass leaves 6e-5, 5e-3 and 0.3 at
    condition numbers of 1e2, 1e3 and 1e4.

    Args:
        x: Matrices of shape ``(..., m, n)`` with ``m >= n``.
        previous: Orthonormal columns, of the shape of ``x``, that are returned for a
            matrix that is zero or not finite, or for which the method fails. None: the
            identity for a zero matrix, NaN otherwise.
        shift: First shift, relative to the mean diagonal of the Gram matrix; later
            passes start from the machine epsilon.
        passes: Number of passes, whether the columns are then orthonormal or not. None:
            until they are orthonormal.
        fallback: What to return if the method fails: ``"previous"``, or the result of
            :func:`qr_householder` (``"householder"``), which is computed only if
            needed.

    Returns:
        Matrices of the shape and dtype of ``x``.

    Raises:
        ValueError: If there are more columns than rows, or an option is unknown.

    Examples:
        >>> print(cholesky_qr(jnp.array([[3.0, -2.0], [4.0, 4.0]])).round(3))
        [[ 0.6 -0.8]
         [ 0.8  0.6]]

    References:
        ARO, Section 4.1, after Fukaya et al.,
        `Shifted Cholesky QR <https://doi.org/10.1137/18M1218212>`_, 2020. Deviations:
        the shift is relative; the number of passes; the factor is inverted by blocks;
        if the method fails for a matrix, only that matrix falls back, and not its
        batch. The paper prints :math:`X L^{-1}`.
    """
    kernel = partial(_cholesky_qr, passes=passes, fallback=fallback)
    return q_of_each(kernel, x, previous, shift)


def q_of_each(
    kernel: Callable[..., Array], x: Array, previous: Array | None, shift: ArrayLike
) -> Array:
    """The value and derivative of a QR kernel; on a CPU, of one matrix at a time."""
    check_matrices(x)

    def compute(x: Array, previous: Array | None, shift: Array) -> Array:
        each = lambda x, previous: kernel(x, previous, shift)
        large = is_large_stack(x, previous)
        return by_platform(each, x, previous, cpu=in_turn(each) if large else None)

    return q_factor(
        pinned(compute), x, previous, jnp.asarray(shift, work_dtype(x.dtype))
    )


def _qr_householder(x: Array, previous: Array | None) -> Array:
    y, replacement, usable = _prepare(x, previous)
    q = jnp.where(usable[..., None, None], _householder(y), replacement)
    return q.astype(x.dtype)


def _cholesky_qr(
    x: Array,
    previous: Array | None,
    shift: ArrayLike,
    passes: int | None,
    fallback: QRFallback,
) -> Array:
    y, replacement, usable = _prepare(x, previous)
    dot = of_columns(x.shape[-1])
    q, done = cholesky_passes(y, replacement, ~usable, shift, passes, dot)
    if fallback == "householder":
        failed = usable & ~done
        replacement = jax.lax.cond(
            jnp.any(failed),
            lambda: jnp.where(failed[..., None, None], _householder(y), replacement),
            lambda: replacement,
        )
    elif previous is None:
        replacement = jnp.where((usable & ~done)[..., None, None], jnp.nan, replacement)
    return jnp.where((usable & done)[..., None, None], q, replacement).astype(x.dtype)


def _householder(y: Array) -> Array:
    q, r = qr(y, of_columns(y.shape[-1]))
    diagonal = jnp.diagonal(r, axis1=-2, axis2=-1)[..., None, :]
    return jnp.where(diagonal < 0, -q, q)


def _prepare(x: Array, previous: Array | None) -> tuple[Array, Array, Array]:
    """Return the scaled matrices, their replacements, and which ones are usable."""
    y, _ = unit_peak(as_work(x))
    m, n = y.shape[-2:]
    if m < n:
        raise ValueError(
            f"`x` must have at least as many rows as columns, got shape {x.shape}; "
            "transpose it."
        )
    if previous is None:
        eye = jnp.broadcast_to(jnp.eye(m, n, dtype=y.dtype), y.shape)
        finite = jnp.all(jnp.isfinite(y), axis=(-2, -1), keepdims=True)
        replacement = jnp.where(finite, eye, jnp.nan)
    else:
        replacement = previous.astype(y.dtype)
    return y, replacement, is_usable(y)[..., 0, 0]


@traced_once
def qr(
    x: Float[Array, "*batch m n"], dot: Product = full_dot
) -> tuple[Float[Array, "*batch m n"], Float[Array, "*batch n n"]]:
    """The reduced QR decomposition of matrices with ``m >= n``.

    By Householder reflections; on CUDA, and on a TPU for more than 1024 columns, by
    Cholesky QR. The signs of the diagonal of R depend on the platform.
    """
    by_cholesky = partial(qr_by_cholesky, dot=dot)
    loops = x.shape[-1] > Thresholds.reflected_columns and can_loop(x)
    return by_platform(
        lapack.qr, x, cuda=by_cholesky, tpu=by_cholesky if loops else None
    )


# The form for CUDA, where reflections take one matrix after another, and for many
# columns on a TPU, where the compiler unrolls reflections.
def qr_by_cholesky(x: Array, dot: Product = full_dot) -> tuple[Array, Array]:
    """`qr` by `cholesky_passes`; the diagonal of R is positive."""
    y, _ = unit_peak(x)
    eye = jnp.broadcast_to(jnp.eye(*y.shape[-2:], dtype=y.dtype), y.shape)
    zero = jnp.all(y == 0, axis=(-2, -1))
    q, done = cholesky_passes(y, eye, zero, _QR_SHIFT, None, dot)
    q = jnp.where(done[..., None, None], q, jnp.nan)
    q = jnp.where(zero[..., None, None], eye, q)
    return q, jnp.triu(dot(q.mT, x))
