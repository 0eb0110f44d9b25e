"""Working precision, and norms, quotients and roots that neither overflow nor vanish.

Entries may be as large as 1e20 or as small as 1e-20: matrices are divided by their
largest entry, or by a number of that size, before anything is squared.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, Bool, Float

from optax_matrix._platforms import by_platform


def check_matrices(x: Any) -> None:
    """Raise unless an array holds floating matrices ``(..., m, n)``."""
    if x.ndim < 2:
        remedy = "leave vectors to another optimizer, or add an axis."
        if not x.ndim:
            remedy = (
                "optax.inject_hyperparams calls functions among the arguments as "
                "schedules, so give kernels by name, or use om.inject_hyperparams."
            )
        raise ValueError(
            f"`x` must be matrices (..., m, n), got shape {x.shape}; {remedy}"
        )
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise ValueError(
            f"`x` must be floating, got dtype {x.dtype}; cast it, for example with "
            "x.astype(jnp.float32)."
        )


def work_dtype(dtype: DTypeLike) -> jnp.dtype:
    """Return float64 for float64 and float32 for every narrower type."""
    return jnp.dtype(dtype if jnp.finfo(dtype).bits > 32 else jnp.float32)


def widened(x: Any) -> Any:
    """Cast half precision to float32; all other dtypes stay as they are."""
    is_real = jnp.issubdtype(x.dtype, jnp.floating)
    return x.astype(work_dtype(x.dtype)) if is_real else x


def as_work(x: Float[Array, "*batch m n"]) -> Float[Array, "*batch m n"]:
    """Check that an array holds floating matrices, and widen it."""
    check_matrices(x)
    return widened(x)


def largest_entry(x: Float[Array, "*batch m n"]) -> Float[Array, "*batch 1 1"]:
    """The largest absolute entry of each matrix, ``(..., 1, 1)``."""
    return jnp.max(jnp.abs(x), axis=(-2, -1), keepdims=True, initial=0.0)


def is_some(x: Float[Array, "*batch m n"]) -> Bool[Array, "*batch 1 1"]:
    """Which matrices are not zero, ``(..., 1, 1)``: by the reduction of `unit_peak`."""
    return largest_entry(x) != 0


def is_usable(x: Float[Array, "*batch m n"]) -> Bool[Array, "*batch 1 1"]:
    """Which matrices are finite and not zero, ``(..., 1, 1)``."""
    # On a GPU these two are one reduction; by `is_some` they would be two.
    finite = jnp.all(jnp.isfinite(x), axis=(-2, -1), keepdims=True)
    return finite & jnp.any(x != 0, axis=(-2, -1), keepdims=True)


def unit_peak(
    x: Float[Array, "*batch m n"],
) -> tuple[Float[Array, "*batch m n"], Float[Array, "*batch 1 1"]]:
    """Divide each matrix by its largest absolute entry, returned as ``(..., 1, 1)``.

    Afterwards squares and sums of squares neither overflow nor underflow, even for
    entries of 1e20 or 1e-20. A zero (or subnormal) matrix is divided by one. The
    divisor counts as a constant in derivatives, which is exact where it cancels out of
    the result, as it should wherever this is used.
    """
    peak = peak_or_one(x)
    return x / peak, peak


def peak_or_one(
    x: Float[Array, "*batch m n"], peak: Float[Array, "*batch 1 1"] | None = None
) -> Float[Array, "*batch 1 1"]:
    """The divisor of `unit_peak`, from the largest entry if that is known."""
    check_matrices(x)
    peak = largest_entry(x) if peak is None else peak.astype(x.dtype)
    # `~(<)` and not `>=`, so that a NaN stays visible.
    peak = jnp.where(peak < jnp.finfo(x.dtype).tiny, jnp.ones_like(peak), peak)
    return kept_apart(jax.lax.stop_gradient(peak))


def wide_unit_peak(x: Float[Array, "*batch m n"]) -> tuple[Array, bool]:
    """Transpose tall matrices and divide by the largest entry, for polar kernels.

    Returns matrices in the working precision, and whether they are transposed.
    """
    x = as_work(x)
    transposed = x.shape[-2] > x.shape[-1]
    y, _ = unit_peak(x.mT if transposed else x)
    return y, transposed


def wide_unit_norm(
    x: Float[Array, "*batch m n"], eps: ArrayLike, dtype: DTypeLike
) -> tuple[Array, bool]:
    """Transpose tall matrices, divide by the Frobenius norm and cast.

    ``eps`` is added to the norm and relative to the largest entry.
    """
    x = as_work(x)
    transposed = x.shape[-2] > x.shape[-1]
    x = x.mT if transposed else x
    y, peak = unit_peak(x)
    squares, divisor = squares_of(x, peak, axis=(-2, -1))
    norm = safe_root(squares) * (divisor / peak)
    return (y / (norm + jnp.asarray(eps, y.dtype))).astype(dtype), transposed


Axes = int | tuple[int, ...]


def squares_of(
    x: Array, peak: Array, axis: Axes, known: bool = False
) -> tuple[Array, Array]:
    """Sums over axes, which are kept, of squares of x over a divisor; and the divisor.

    The divisor is the peak of x, or on CUDA another number of that size, unless the
    peak was ``known`` before x is read.
    """
    by_peak = lambda x, peak: (jnp.sum(jnp.square(x / peak), axis, keepdims=True), peak)
    at_once = lambda x, _: squares_in_one_reading(x, axis)
    return by_platform(by_peak, x, peak, cuda=None if known else at_once)


def inverse(v: Array) -> Array:
    """Take the reciprocal of every entry; zeros stay zero."""
    return jnp.where(v == 0, v, 1 / jnp.where(v == 0, jnp.ones_like(v), v))


def unit_max(v: Array) -> Array:
    """Divide nonnegative vectors by their largest entry; zero vectors stay zero.

    As in `unit_peak`, the divisor counts as a constant in derivatives.
    """
    largest = jnp.max(v, axis=-1, keepdims=True, initial=0.0)
    return v * inverse(jax.lax.stop_gradient(largest))


def safe_rsqrt(v: Array) -> Array:
    """Take the inverse square root of every entry; zeros stay zero."""
    return jnp.where(v == 0, v, jax.lax.rsqrt(jnp.where(v == 0, jnp.ones_like(v), v)))


def inverse_norms(squares: Array, eps: ArrayLike) -> Array:
    """Reciprocal norms from squared ones; ``eps`` is relative to their mean."""
    squares = kept_apart(squares)
    mean = kept_apart(jnp.mean(squares, axis=(-2, -1), keepdims=True))
    return safe_rsqrt(squares + jnp.asarray(eps, squares.dtype) * mean)


# Keeps XLA from computing a reduction again wherever it is used (on an H200 one kernel
# that did so for 12 matrices took an eighth of a step of MuonEq with 84), and from
# merging products.
kept_apart = jax.lax.optimization_barrier


def safe_root(v: Array, p: int = 2) -> Array:
    """Take the root of nonnegative entries; the derivative at zero is zero."""
    zero, one = jnp.zeros_like(v), jnp.ones_like(v)
    return jnp.where(v == 0, zero, jnp.where(v == 0, one, v) ** (1 / p))


def roots_with_floor(squares: Array, is_some: Array) -> Array:
    """Take roots of vectors; where they are some, at least 1e-15 of the largest."""
    root = safe_root(squares)
    floor = 1e-15 * jax.lax.stop_gradient(jnp.max(root, axis=-1, keepdims=True))
    return jnp.where(is_some, jnp.maximum(root, floor), root)


def safe_divide(x: Array, y: Array) -> Array:
    """``x / y`` for nonnegative y, and 0 where y is 0."""
    # `y == 0`, not `y > 0`, so that a NaN in the divisor stays visible.
    return jnp.where(y == 0, 0, x / jnp.where(y == 0, 1, y))


def matrix_norm(x: Array) -> Array:
    """Frobenius norms ``(..., 1, 1)`` that neither overflow nor vanish."""
    return _norms(x, (-2, -1))


def resized(x: Array, norm: ArrayLike) -> Array:
    """Matrices of these Frobenius norms ``(..., 1, 1)``; zero matrices stay zero."""
    return safe_divide(x, matrix_norm(x)) * norm


def column_norms(x: Array) -> Array:
    """Norms of columns ``(..., n)`` that neither overflow nor vanish."""
    return jnp.squeeze(_norms(x, -2), -2)


def _norms(x: Array, axis: Axes) -> Array:
    x = widened(x)
    squares, divisor = squares_of(x, peak_or_one(x), axis)
    return divisor * safe_root(squares)


# The form for CUDA. To find the peak first would read x twice. It is not needed if the
# squares of all matrices are summed at three scales in one pass: those of any x are in
# range at one of them. By the compiler, a step of `muoneq` on an H200 moved 35.6 times
# the bytes of the weights with it, and 36.6 times without it.
_DIVISORS = 2.0**-80, 1.0, 2.0**80


def squares_in_one_reading(x: Array, axis: Axes) -> tuple[Array, Array]:
    """`squares_of`, without the peak: of sums at three scales the one that fits.

    The divisor counts as a constant in derivatives.
    """
    # Bounded, so that a sum that is not chosen has no infinite factor in derivatives.
    size = lambda d: jnp.minimum(jnp.abs(x / d), 2.0**63)
    squares, *rest = kept_apart(
        [jnp.sum(jnp.square(size(d)), axis, keepdims=True) for d in _DIVISORS]
    )
    divisor = jnp.full_like(largest_entry(squares), _DIVISORS[0])
    for d, sums in zip(_DIVISORS[1:], rest, strict=True):
        is_large = largest_entry(squares) > 2.0**100
        squares = jnp.where(is_large, sums, squares)
        divisor = jnp.where(is_large, jnp.asarray(d, x.dtype), divisor)
    # The largest becomes one, so that powers of it are finite in derivatives.
    largest = peak_or_one(squares)
    return squares / largest, divisor * jnp.sqrt(largest)
