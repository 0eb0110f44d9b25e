r"""Orthonormal columns: the Q of a QR whose R has a positive diagonal.

:func:`qr_householder` and :func:`cholesky_qr` give the same matrix and share the
contract of :class:`Orthonormalize`, so that a block can take either.
"""

from typing import Literal, NamedTuple, Protocol, get_args, runtime_checkable

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from optax_matrix.linalg._checks import check_positive_int
from optax_matrix.linalg._lapack import cholesky, qr
from optax_matrix.linalg._products import full_dot
from optax_matrix.linalg._scale import as_work, inverse, unit_peak
from optax_matrix.linalg._triangular import inverse_lower

QRFallback = Literal["previous", "householder"]
_FALLBACKS = get_args(QRFallback)
# Two passes are the rule. The worst of the matrices tried (exactly singular ones, with
# sides of 8 to 256) took ten factorizations, three of which were repeats.
_MAX_TRIES = 16
_SHIFT_GROWTH = 100.0
# A Gram matrix so close to the identity (in the Frobenius norm, so a condition number
# of at most 1.8) leaves the pass with an error of rounding.
_NEAR = 0.5
# Squared pivots of the third pass and later: what still depends on other columns.
_DEPENDENT = 1e-4


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

    is repeated until the columns are orthonormal: twice up to a condition number of
    1e3, three or four times beyond. Each matrix has its own ``s`` and stops by itself:
    where a factor is not finite, the pass is repeated with 100 times the shift. A
    zero column becomes that of ``previous``, and one that still depends on the others
    in the third pass is drawn anew, so that the result is orthonormal for
    rank-deficient matrices too.

    Measured in float32, for sides up to 256: entries of :math:`Q^\top Q - I` of at most
    4e-7 for every kind of input, singular ones too (Householder: mostly 5e-7), and the
    same distance from the float64 answer as Householder, 2e-9 times the condition
    number. A single pass leaves 6e-5, 5e-3 and 0.3 at condition numbers of 1e2, 1e3
    and 1e4.

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
    y, spare, usable = _prepare(x, previous)
    q, done = _cholesky_passes(y, spare, ~usable, shift, passes)
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


class _State(NamedTuple):
    tries: Array
    y: Array
    shift: Array
    count: Array
    done: Array


def _cholesky_passes(
    y: Array, spare: Array, skip: Array, shift: ArrayLike, passes: int | None
) -> tuple[Array, Array]:
    """Repeat the pass; return the columns and which matrices are finished."""
    adaptive = passes is None
    tries = _MAX_TRIES if passes is None else passes + _MAX_TRIES // 2
    eye = jnp.eye(y.shape[-1], dtype=y.dtype)
    eps = jnp.asarray(jnp.finfo(y.dtype).eps, y.dtype)

    def unfinished(state: _State) -> Array:
        return (state.tries < tries) & ~jnp.all(state.done)

    def one_pass(state: _State) -> _State:
        y, s = state.y, state.shift[..., None, None]
        gram = full_dot(y.mT, y)
        l = cholesky(gram + s * eye[_as_batch(y)])
        q = _unit_columns(full_dot(y, inverse_lower(l).mT))
        finite = jnp.all(jnp.isfinite(q), axis=(-2, -1))
        count = state.count + finite.astype(jnp.int32)
        if adaptive:
            pivots = jnp.diagonal(l, axis1=-2, axis2=-1) ** 2
            dependent = (state.count[..., None] > 1) & (pivots < _DEPENDENT)
            drawn = _random_columns(state.tries, y)[_as_batch(y)]
            q = jnp.where(dependent[..., None, :], drawn, q)
            near = jnp.linalg.norm(gram - eye[_as_batch(y)], axis=(-2, -1)) < _NEAR
            precise = state.shift <= eps  # In float64 the first shift is not.
            last = near & precise & ~jnp.any(dependent, axis=-1)
        else:
            last = count == passes
        return _State(
            tries=state.tries + 1,
            y=jnp.where((finite & ~state.done)[..., None, None], q, y),
            shift=jnp.where(finite, eps, _SHIFT_GROWTH * jnp.maximum(state.shift, eps)),
            count=count,
            done=state.done | (finite & last),
        )

    y = _unit_columns(y)
    y = jnp.where(jnp.all(y == 0, axis=-2, keepdims=True), spare, y)
    start = _State(
        tries=jnp.zeros((), jnp.int32),
        y=y,
        shift=jnp.full(skip.shape, shift, y.dtype),
        count=jnp.zeros(skip.shape, jnp.int32),
        done=skip,
    )
    end = jax.lax.while_loop(unfinished, one_pass, start)
    return end.y, end.done


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


def _random_columns(seed: Array, y: Array) -> Array:
    # From the pass, so that no compiler folds a large constant.
    key = jax.random.fold_in(jax.random.key(0), seed)
    return _unit_columns(jax.random.normal(key, y.shape[-2:], y.dtype))


def _as_batch(y: Array) -> tuple[None, ...]:
    return (None,) * (y.ndim - 2)


def _unit_columns(y: Array) -> Array:
    return y * inverse(jnp.sqrt(jnp.sum(y * y, axis=-2, keepdims=True)))
