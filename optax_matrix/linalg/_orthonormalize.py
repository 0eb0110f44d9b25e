r"""Orthonormal columns: the Q of a QR whose R has a positive diagonal.

:func:`qr_householder` and :func:`cholesky_qr` give the same matrix and share the
contract of :class:`Orthonormalize`, so that a block can take either.
"""

from typing import Literal, Protocol, get_args, runtime_checkable

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from optax_matrix.arguments import check_positive_int
from optax_matrix.linalg._cholesky_passes import cholesky_passes
from optax_matrix.linalg.lapack import qr
from optax_matrix.linalg.platforms import in_turn_on_cpu
from optax_matrix.linalg.scale import as_work, unit_peak

QRFallback = Literal["previous", "householder"]
_FALLBACKS = get_args(QRFallback)


@runtime_checkable
class Orthonormalize(Protocol):
    """A kernel that makes columns orthonormal.

    It keeps the span of the leading columns, for every number of them, and points
    each column to the side of the given one. A zero matrix gives ``previous``.
    """

    def __call__(self, x: Array, /, *, previous: Array | None = None) -> Array: ...


def qr_householder(
    x: Float[Array, "*batch m n"], *, previous: Float[Array, "*batch m n"] | None = None
) -> Float[Array, "*batch m n"]:
    r"""Compute Q of :math:`X = QR` with a positive diagonal of R, by reflections.

    Orthonormal to rounding for every input; where columns depend on the others the
    new ones are arbitrary. For TPU a decomposition of side 2048 takes 72 seconds to
    compile; :func:`cholesky_qr` is made of products.

    Args:
        x: Matrices of shape ``(..., m, n)`` with ``m >= n``.
        previous: Orthonormal columns, of the shape of ``x``, that are the answer
            where a matrix is zero or not finite. None: the identity where it is
            zero, and NaN where it is not finite.

    Returns:
        Matrices of the shape and dtype of ``x``.

    Raises:
        ValueError: If there are more columns than rows.

    Examples:
        >>> print(qr_householder(jnp.array([[3.0, -2.0], [4.0, 4.0]])).round(3))
        [[ 0.6 -0.8]
         [ 0.8  0.6]]
    """
    y, spare, usable = _prepare(x, previous)
    q = jnp.where(usable[..., None, None], _householder(y), spare)
    return q.astype(x.dtype)


def cholesky_qr(
    x: Float[Array, "*batch m n"],
    *,
    previous: Float[Array, "*batch m n"] | None = None,
    shift: ArrayLike = 1e-7,
    passes: int | None = None,
    fallback: QRFallback = "previous",
) -> Float[Array, "*batch m n"]:
    r"""Compute Q of :math:`X = QR` with a positive diagonal of R, by Cholesky.

    One pass, on columns scaled to unit norm (which leaves Q as it is),

    .. math::
        L L^\top = X^\top X + s I, \qquad X \leftarrow X L^{-\top},

    is repeated until the columns are nearly orthonormal: once up to a condition number
    of 1e2, twice up to 1e5, three times and more beyond. What is then left above the
    diagonal of the Gram matrix, :math:`U`, is taken out by
    :math:`X \leftarrow X (I - U)`, up to its square, which is rounding. Each matrix has
    its own ``s`` and stops by itself: where a factor is not finite, the pass is
    repeated with 100 times the shift. A zero column becomes that of ``previous``, and
    one that still depends on the others in the third pass is drawn anew, so that the
    result is orthonormal for rank-deficient matrices too.

    Measured in float32, for sides up to 256: entries of :math:`Q^\top Q - I` of at most
    4e-7 for every kind of input, singular ones too (Householder: 6e-7), and no more
    distance from the float64 answer than Householder's, 1e-9 to 9e-9 times the
    condition number. A single pass leaves 6e-5, 5e-3 and 0.3 at condition numbers of
    1e2, 1e3 and 1e4.

    Args:
        x: Matrices of shape ``(..., m, n)`` with ``m >= n``.
        previous: Orthonormal columns, of the shape of ``x``, that are the answer
            where a matrix is zero, not finite or defeats the method. None: the
            identity where it is zero, NaN otherwise.
        shift: First shift, relative to the mean diagonal of the Gram matrix; later
            passes start from the machine epsilon.
        passes: None: until the columns are orthonormal. Otherwise this number,
            whatever comes out; 1 is what the ARO paper does.
        fallback: Where the method is defeated: ``"previous"``, or the result of
            :func:`qr_householder`, which is computed only if needed.

    Returns:
        Matrices of the shape and dtype of ``x``.

    Raises:
        ValueError: If there are more columns than rows, or an option is unknown.

    Examples:
        >>> print(cholesky_qr(jnp.array([[3.0, -2.0], [4.0, 4.0]])).round(3))
        [[ 0.6 -0.8]
         [ 0.8  0.6]]

    References:
        ARO, Section 4.1, after Fukaya et al., `Shifted Cholesky QR
        <https://doi.org/10.1137/18M1218212>`_, 2020. Deviations: the shift is
        relative; the passes; the factor is inverted by blocks; a failed matrix falls
        back alone and not with its batch. The paper prints :math:`X L^{-1}`.
    """
    if fallback not in _FALLBACKS:
        raise ValueError(f"`fallback` must be one of {_FALLBACKS}, got {fallback!r}.")
    if passes is not None:
        check_positive_int("passes", passes)

    def kernel(x: Array, previous: Array | None) -> tuple[Array]:
        return (_cholesky_qr(x, previous, shift, passes, fallback),)

    return in_turn_on_cpu(kernel, x, previous)[0]


def _cholesky_qr(
    x: Array,
    previous: Array | None,
    shift: ArrayLike,
    passes: int | None,
    fallback: QRFallback,
) -> Array:
    y, spare, usable = _prepare(x, previous)
    q, done = cholesky_passes(y, spare, ~usable, shift, passes)
    if fallback == "householder":
        failed = usable & ~done
        spare = jax.lax.cond(
            jnp.any(failed),
            lambda: jnp.where(failed[..., None, None], _householder(y), spare),
            lambda: spare,
        )
    elif previous is None:
        spare = jnp.where((usable & ~done)[..., None, None], jnp.nan, spare)
    return jnp.where((usable & done)[..., None, None], q, spare).astype(x.dtype)


def _householder(y: Array) -> Array:
    q, r = qr(y)
    diagonal = jnp.diagonal(r, axis1=-2, axis2=-1)[..., None, :]
    return jnp.where(diagonal < 0, -q, q)


def _prepare(x: Array, previous: Array | None) -> tuple[Array, Array, Array]:
    """Return the scaled matrices, the answer in their place, and whether they serve."""
    y, _ = unit_peak(as_work(x))
    m, n = y.shape[-2:]
    if m < n:
        raise ValueError(
            f"`x` must have at least as many rows as columns, got shape {x.shape}; "
            "transpose it."
        )
    finite = jnp.all(jnp.isfinite(y), axis=(-2, -1))
    if previous is None:
        eye = jnp.broadcast_to(jnp.eye(m, n, dtype=y.dtype), y.shape)
        spare = jnp.where(finite[..., None, None], eye, jnp.nan)
    else:
        spare = previous.astype(y.dtype)
    return y, spare, finite & jnp.any(y != 0, axis=(-2, -1))
