"""The passes of Cholesky QR; each makes the columns more nearly orthonormal."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array

from optax_matrix._mesh import vary_like
from optax_matrix._platforms import by_platform
from optax_matrix._thresholds import Thresholds
from optax_matrix.linalg._triangular import cholesky_quotient, inverse_lower
from optax_matrix.linalg.lapack import cholesky
from optax_matrix.linalg.products import Product, traced_once
from optax_matrix.linalg.random import hash_uint32
from optax_matrix.linalg.scale import inverse, kept_apart, safe_divide

# One or two passes usually suffice. The hardest matrices tried (exactly singular, with
# sides of 8 to 256) needed ten factorizations, of which three were repeats.
_MAX_TRIES = 16
# In the third pass and later, a column whose squared pivot is below this still depends
# linearly on the others.
_DEPENDENT = 1e-4


class _State(NamedTuple):
    tries: Array
    y: Array
    gram: Array
    shift: Array
    count: Array
    done: Array


@partial(traced_once, static_argnames=("passes", "dot"))
def cholesky_passes(
    y: Array,
    replacement: Array,
    skip: Array,
    shift: ArrayLike,
    passes: int | None,
    dot: Product,
) -> tuple[Array, Array]:
    """Repeat the pass of Cholesky QR until the columns are orthonormal.

    Matrices ``y`` are scaled so that squares are in range; ``replacement`` has columns
    for those that are zero; matrices in ``skip`` do not change. Returns the columns,
    and which matrices have finished. On CUDA the number of passes is fixed: otherwise
    the host would wait for each pass to decide on the next.
    """
    y = unit_columns(y, replacement)
    passed = partial(_adaptive_passes, passes=passes, dot=dot)
    fixed = partial(fixed_passes, passes=passes, dot=dot)
    shift = jnp.asarray(shift, y.dtype)
    return by_platform(passed, y, skip, shift, cuda=fixed)


def _adaptive_passes(
    y: Array, skip: Array, shift: Array, passes: int | None, dot: Product
) -> tuple[Array, Array]:
    """The passes of unit columns, until all matrices have finished."""
    adaptive = passes is None
    tries = _MAX_TRIES if passes is None else passes + _MAX_TRIES // 2
    eye = jnp.eye(y.shape[-1], dtype=y.dtype)[(None,) * (y.ndim - 2)]
    eps = jnp.asarray(jnp.finfo(y.dtype).eps, y.dtype)

    def unfinished(state: _State) -> Array:
        return (state.tries < tries) & ~jnp.all(state.done)

    def divided(state: _State) -> tuple[Array, Array, Array, Array]:
        gram = state.gram + state.shift[..., None, None] * eye
        l, q = cholesky_quotient(gram, state.y, dot)
        q = unit_columns(q)
        finite = jnp.all(jnp.isfinite(q), axis=(-2, -1))
        count = state.count + finite.astype(jnp.int32)
        if adaptive:
            # A column with a small pivot after two passes depends on those before it.
            # It is replaced by a random one, and the next passes orthogonalize that.
            pivots = jnp.sum(l * eye, axis=-1) ** 2  # TPUs would gather the diagonal.
            dependent = (state.count[..., None] > 1) & (pivots < _DEPENDENT)
            replaced = (dependent & finite[..., None])[..., None, :]
            drawn = random_columns(q, state.tries)
            q = jnp.where(replaced, drawn, q)
        # If a factor is not finite, the shift was too small for rounding: the pass is
        # repeated from the same columns with a larger one.
        changed = (finite & ~state.done)[..., None, None]
        larger = _SHIFT_GROWTH * jnp.maximum(state.shift, eps)
        return (
            *(jnp.where(changed, q, state.y), jnp.where(finite, eps, larger)),
            *(count, finite),
        )

    def unchanged(state: _State) -> tuple[Array, Array, Array, Array]:
        return state.y, state.shift, state.count, jnp.zeros_like(state.done)

    def one_pass(state: _State) -> _State:
        # The first pass only computes the Gram matrix, so that the program contains
        # this product once.
        first = state.tries < 0
        y, shift, count, finite = jax.lax.cond(first, unchanged, divided, state)
        gram = dot(y.mT, y)
        last = is_near(gram - eye) if adaptive else count == passes
        done = state.done | (finite & last)
        return _State(state.tries + 1, y, gram, shift, count, done)

    start = _State(
        tries=jnp.full((), -1, jnp.int32),
        y=y,
        gram=jnp.zeros((*y.shape[:-2], y.shape[-1], y.shape[-1]), y.dtype),
        shift=jnp.full(skip.shape, shift, y.dtype),
        count=jnp.zeros(skip.shape, jnp.int32),
        done=skip,
    )
    end = jax.lax.while_loop(unfinished, one_pass, vary_like(start, (y, skip)))
    if not adaptive:
        return end.y, end.done
    # With columns of norm one, I plus the part of the Gram matrix above the diagonal is
    # the Cholesky factor of that matrix to first order.
    above = jnp.triu(end.gram, 1)
    return unit_columns(end.y - dot(end.y, above)), end.done


def is_near(error: Array) -> Array:
    """Whether the squared error of a Gram matrix is at the level of rounding."""
    eps = float(jnp.finfo(error.dtype).eps)
    return jnp.linalg.norm(error, axis=(-2, -1)) < 2 * eps**0.5


def random_columns(like: Array, seed: Array) -> Array:
    """Random columns ``(m, n)`` of nearly unit norm, for matrices ``(..., m, n)``."""
    m, n = like.shape[-2:]
    place = jnp.arange(m * n, dtype=jnp.uint32).reshape(m, n)
    # The seed depends on the pass; from a constant, compilers would compute all of this
    # at compile time and store it as one large constant.
    bits = hash_uint32(place + seed.astype(jnp.uint32) * jnp.uint32(0x9E3779B9))
    return (bits.astype(like.dtype) * 2.0**-31 - 1) * (3 / m) ** 0.5


def unit_columns(y: Array, replacement: Array | None = None) -> Array:
    """Columns of norm one; those of zeros are replaced, or stay zero."""
    norms = jnp.sqrt(jnp.sum(y * y, axis=-2, keepdims=True))
    unit = y * inverse(norms)
    return unit if replacement is None else jnp.where(norms == 0, replacement, unit)


# The form for CUDA: the same number of passes for every matrix, so that the host need
# not decide on them.
#
# Why four passes suffice. A pass with the shift s takes a singular value v of unit
# columns to v / sqrt(v^2 + s): those above sqrt(s) become nearly one, smaller ones grow
# by 1 / sqrt(s). So a pass divides the condition number by up to 1 / sqrt(s), about
# 2000 in float32. Of 1e7, which is all that float32 can show, the passes leave 5e3, 3,
# 1 and 1 (64 x 64); the fourth removes the rounding of the third.
#
# Why this shift. The rounding of a Gram matrix G is about eps |G|, and its smallest
# eigenvalue may be zero. Cholesky's method fails on a negative one, which costs a pass,
# so s has to exceed the rounding; it should do so by little, as a pass gains
# 1 / sqrt(s). Both norms in the shift are bounds on |G|; neither is always the smaller.
#
# Why pivots show dependent columns. A squared pivot is the squared distance of a
# column from those before it, plus what the shift adds. If it depends on them, the
# distance is zero, and there remain two shifts: one of its own, and one that the shift
# of the others leaves of it. So 2 s finds exact multiples in the first pass, where
# their quotients are rounding alone and could be equal for two columns. An
# independent column grows by up to 1 / sqrt(s) in that pass, and then has a squared
# pivot far above 30 s; what is below has a distance of rounding, and a random column
# takes its place. Without that, the passes would amplify rounding to columns of norm
# one, and such columns need not be orthogonal to the others.

# For each pass: how much of a random column is added to one that depends on others, and
# up to which squared pivot, in shifts, a column does. The last two passes make random
# columns orthonormal. With sides of 32 to 512, matrices of any condition number and
# rank ended with entries of Q'Q - I below 1e-6; the matrices of Hilbert and Kahan did
# not.
_PASSES = ((1e-4, 2.0), (1.0, 30.0), (0.0, 0.0), (0.0, 0.0))
# The rounding of a Gram matrix is about an epsilon of its largest eigenvalue.
_SHIFT = 2.0
_SHIFT_GROWTH = 100.0
# Columns are processed in up to four panels.
_PANELS = 4


def fixed_passes(
    y: Array, skip: Array, shift: Array, passes: int | None, dot: Product
) -> tuple[Array, Array]:
    r"""Four passes of unit columns, or the given number, for every matrix.

    The shift is at least twice the rounding of the Gram matrix,

    .. math::
        2 \epsilon \min(\|X^\top X\|_F, \|X^\top X\|_\infty)

    so that a factor that is not finite is rare; the next pass then has a larger shift.
    Without a given number, the passes process one panel of columns after another. Each
    first removes the panel's part in the span of the panels before, which halves the
    work.
    """
    shift = jnp.full(skip.shape, shift, y.dtype)
    if passes is not None:
        y, done = _passed(y, None, skip, shift, ((0.0, 0.0),) * passes, dot)
        return unit_columns(y), done
    n = y.shape[-1]
    width = -(-n // max(1, min(_PANELS, n // Thresholds.panel_columns)))
    found, done = None, jnp.ones_like(skip)
    for start in range(0, n, width):
        panel = y[..., start : start + width]
        q, finite = _passed(panel, found, skip, shift, _PASSES, dot)
        found = q if found is None else jnp.concatenate([found, q], axis=-1)
        done &= finite
    y = y if found is None else found
    return y, skip | (done & is_near(dot(y.mT, y) - _eye(y)))


def _passed(
    y: Array,
    before: Array | None,
    skip: Array,
    first: Array,
    table: Any,
    dot: Product,
) -> tuple[Array, Array]:
    """Columns after the passes of a table, and which matrices' last one was finite.

    Between passes columns have any norm. The Gram matrix is scaled to a diagonal of
    ones instead, and the quotient by its factor takes the scales, so that a pass reads
    the columns twice and writes them once.
    """
    eye, eps = _eye(y), float(jnp.finfo(y.dtype).eps)
    draws = any(amount for amount, _ in table)

    def one_pass(state: tuple[Array, ...], numbers: Array) -> tuple[Any, None]:
        y, least, growth, _ = state
        amount, slack, seed = numbers
        inside = jnp.zeros_like(y[..., :1, :])
        if before is not None:
            inside = dot(before.mT, y)
            y = y - dot(before, inside)
        gram = dot(y.mT, y)
        squares = jnp.sum(gram * eye, axis=-1)
        over = inverse(jnp.sqrt(squares))
        gram = gram * over[..., None] * over[..., None, :]
        shift = growth * jnp.maximum(least, _SHIFT * eps * _size(gram))
        # Turned, as the library wants columns in a row: XLA need not copy it.
        l = cholesky((gram + shift[..., None, None] * eye).mT)
        pivots = jnp.sum(l * eye, axis=-1) ** 2
        finite = jnp.all(jnp.isfinite(pivots), axis=-1)
        # Without a factor the columns stay, and the next pass has a larger shift.
        quotient = jnp.where(finite[..., None, None], inverse_lower(l, dot).mT, eye)
        y = dot(y, over[..., None] * quotient)
        if draws:
            left = safe_divide(squares, squares + jnp.sum(inside**2, axis=-2))
            dependent = left * pivots < slack * shift[..., None]
            amounts = amount * dependent.astype(y.dtype)[..., None, :]
            y = y + amounts * random_columns(y, seed)[(None,) * (y.ndim - 2)]
        growth = jnp.where(finite, 1, _SHIFT_GROWTH * growth)
        return (y, jnp.zeros_like(least), growth, skip | finite), None

    # Other panels draw other columns.
    at = 0 if before is None else before.shape[-1]
    numbers = jnp.asarray([(*row, at + i) for i, row in enumerate(table)], y.dtype)
    ones = jnp.ones(skip.shape, y.dtype)
    start = vary_like((y, first, ones, skip), (y, skip))
    (y, _, _, done), _ = jax.lax.scan(one_pass, start, numbers)
    return y, done


def _size(gram: Array) -> Array:
    """The least of two bounds on the largest eigenvalue, from one reading."""
    sums = jnp.sum(gram**2, axis=-1), jnp.sum(jnp.abs(gram), axis=-1)
    squares, sizes = kept_apart(sums)
    norm = jnp.sqrt(jnp.sum(squares, axis=-1))
    return jnp.minimum(norm, jnp.max(sizes, axis=-1))


def _eye(y: Array) -> Array:
    return jnp.eye(y.shape[-1], dtype=y.dtype)[(None,) * (y.ndim - 2)]
