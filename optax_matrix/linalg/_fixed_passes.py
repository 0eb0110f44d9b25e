"""As many passes of Cholesky QR for every matrix, so that no host decides on them."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from optax_matrix._mesh import vary_like
from optax_matrix._thresholds import Thresholds
from optax_matrix.linalg._pass_columns import is_near, random_columns, unit_columns
from optax_matrix.linalg._triangular import cholesky_quotient
from optax_matrix.linalg.products import Product

# For each pass: how much of a random column is added to one that depends on others, and
# up to which squared pivot, in shifts, a column does. The first pass keeps exact
# multiples from vanishing; after the second, dependent columns are random ones. Two
# more make these orthonormal. With sides of 32 to 512, matrices of any condition number
# and rank ended with entries of Q'Q - I below 1e-6; Hilbert's and Kahan's did not.
_PASSES = ((1e-4, 2.0), (1.0, 30.0), (0.0, 0.0), (0.0, 0.0))
# The rounding of a Gram matrix is about an epsilon of its largest eigenvalue.
_SHIFT = 2.0
_SHIFT_GROWTH = 100.0
# Columns are taken in up to four panels.
_PANELS = 4


def fixed_passes(
    y: Array, skip: Array, shift: Array, passes: int | None, dot: Product
) -> tuple[Array, Array]:
    r"""Four passes of unit columns, or the given number, for every matrix.

    The shift is at least twice the rounding of the Gram matrix,

    .. math::
        2 \epsilon \min(\|X^\top X\|_F, \|X^\top X\|_\infty)

    so that a factor that is not finite is rare; the next pass then has a larger shift.
    Of four passes, each takes a panel of columns and first removes its part in the span
    of the panels before, which halves the work.
    """
    shift = jnp.full(skip.shape, shift, y.dtype)
    if passes is not None:
        return _passed(y, None, skip, shift, ((0.0, 0.0),) * passes, dot)
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
    """Columns after the passes of a table, and which matrices' last one was finite."""
    eye, eps = _eye(y), float(jnp.finfo(y.dtype).eps)
    draws = any(amount for amount, _ in table)

    def one_pass(state: tuple[Array, ...], numbers: Array) -> tuple[Any, None]:
        old, least, growth, _ = state
        amount, slack, seed = numbers
        y, left = old, jnp.ones_like(old[..., 0, :])
        if before is not None:
            y = y - dot(before, dot(before.mT, y))
            y, left = unit_columns(y), jnp.sum(y * y, axis=-2)
        gram = dot(y.mT, y)
        size = jnp.minimum(
            jnp.linalg.norm(gram, axis=(-2, -1)),
            jnp.max(jnp.sum(jnp.abs(gram), axis=-1), axis=-1),
        )
        shift = growth * jnp.maximum(least, _SHIFT * eps * size)
        l, q = cholesky_quotient(gram + shift[..., None, None] * eye, y, dot)
        q = unit_columns(q)
        finite = jnp.all(jnp.isfinite(q), axis=(-2, -1))
        if draws:
            pivots = left * jnp.sum(l * eye, axis=-1) ** 2
            dependent = pivots < slack * shift[..., None]
            drawn = amount * random_columns(q, seed)
            q = unit_columns(q + jnp.where(dependent[..., None, :], drawn, 0))
        y = jnp.where((finite & ~skip)[..., None, None], q, old)
        growth = jnp.where(finite, 1, _SHIFT_GROWTH * growth)
        return (y, jnp.zeros_like(least), growth, skip | finite), None

    # Other panels draw other columns.
    at = 0 if before is None else before.shape[-1]
    numbers = jnp.asarray([(*row, at + i) for i, row in enumerate(table)], y.dtype)
    ones = jnp.ones(skip.shape, y.dtype)
    start = vary_like((y, first, ones, skip), (y, skip))
    (y, _, _, done), _ = jax.lax.scan(one_pass, start, numbers)
    return y, done


def _eye(y: Array) -> Array:
    return jnp.eye(y.shape[-1], dtype=y.dtype)[(None,) * (y.ndim - 2)]
