r"""Sinkhorn's scaling of rows and columns, by products with :math:`P = X^2` alone.

A round divides by :math:`P v` for the rows and by :math:`P^\top u` for the columns. The
products of a round need not be computed together: `_simultaneous` pairs them so that
the matrix is read about half as often.
"""

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from optax_matrix._arguments import PositiveInt, checked
from optax_matrix.linalg.products import times
from optax_matrix.linalg.scale import (
    as_work,
    inverse,
    kept_apart,
    peak_or_one,
    safe_root,
    safe_rsqrt,
    squares_of,
    unit_max,
)

SinkhornScheme = Literal["simultaneous", "alternating", "ruiz"]
# Up to so many rounds a program has no loop: XLA would write P for it.
_UNROLLED = 8


@checked
def sinkhorn(
    x: Float[Array, "*batch m n"],
    rounds: PositiveInt = 5,
    scheme: SinkhornScheme = "simultaneous",
    peak: Float[Array, "*batch 1 1"] | None = None,
) -> Float[Array, "*batch m n"]:
    r"""Scale rows and columns in turn until all have root mean square one.

    With :math:`P = X^2` and the result :math:`\mathrm{diag}(u)^{1/2} X
    \mathrm{diag}(v)^{1/2}`, one round is

    ============  ==========================================================
    simultaneous  :math:`u' = 1/(P v),\; v' = 1/(P^\top u)` (ARO)
    alternating   :math:`u' = 1/(P v),\; v' = 1/(P^\top u')` (SinkGD)
    ruiz          :math:`u' = \sqrt{u/(P v)},\; v' = \sqrt{v/(P^\top u)}`
    ============  ==========================================================

    The mean square of the result is :math:`u^\top P v / (mn)`. After an alternating
    round :math:`v = 1 / (P^\top u)`, so that :math:`u^\top P v` is the number of
    columns that are not zero, and P need not be read for it.

    On dense matrices the three schemes agree; on diagonal ones the simultaneous scheme
    oscillates with period two, and Ruiz's converges.

    Args:
        x: Matrices of shape ``(..., m, n)``.
        rounds: Number of rounds.
        scheme: Which of the updates above.
        peak: The largest absolute entry of each matrix, ``(..., 1, 1)``, if it is
            known; a reading of ``x`` is saved.

    Returns:
        Matrices of the shape and dtype of ``x`` with mean square one; zero rows and
        columns stay zero.

    Raises:
        ValueError: If ``rounds`` is not a positive int or ``scheme`` is unknown.

    Examples:
        >>> print(sinkhorn(jnp.array([[1.0, 2.0], [3.0, 4.0]])).round(2))
        [[0.89 1.1 ]
         [1.1  0.89]]

    References:
        ARO, base ``sinkhorn``. Deviation: one normalization at the end, to which the
        paper's scaling in every round is equivalent.
    """
    work = as_work(x)
    known = peak is not None
    squares, divisor = squares_of(work, peak_or_one(work, peak), -1, known)
    y = work / divisor
    balanced = {
        "simultaneous": _simultaneous,
        "alternating": _alternating,
        "ruiz": _ruiz,
    }
    u, v, total = balanced[scheme](y * y, squares[..., 0], rounds)
    rows = safe_root(u) * safe_rsqrt(total / (y.shape[-2] * y.shape[-1]))
    return (rows[..., None] * y * safe_root(v)[..., None, :]).astype(x.dtype)


# Each returns u, v and u'P v (..., 1), from P, its sums over rows, and the rounds.


def _simultaneous(p: Array, sums: Array, rounds: int) -> tuple[Array, Array, Array]:
    r"""The scheme as two chains, each of which has P and its transpose in turn.

    :math:`v_0, u_1 = 1/(P v_0), v_2 = 1/(P^\top u_1), \dots` and
    :math:`u_0, v_1 = 1/(P^\top u_0), u_2 = 1/(P v_1), \dots` do not meet. With the
    second one step behind the first, both need the same product at a time, so that k
    rounds read P k + 1 times, and not 2 k times. When the second takes its last step,
    the first has ended, and the product with its vector gives u'P v.
    """

    def products(p: Array, pair: tuple[Array, Array]) -> list[Array]:
        return [times(p, w) for w in kept_apart(pair)]

    def step(p: Array, pair: tuple[Array, Array]) -> tuple[Array, Array]:
        first, second = products(p, pair)
        return unit_max(inverse(first)), unit_max(inverse(second))

    pair = unit_max(inverse(sums)), jnp.ones_like(sums)
    two = lambda _, pair: step(p, step(p.mT, pair))
    pair = _repeated(two, pair, (rounds - 1) // 2)
    last = p.mT
    if rounds % 2 == 0:
        pair, last = step(p.mT, pair), p
    ended, (along, products_of_second) = pair[0], products(last, pair)
    other = unit_max(inverse(products_of_second))
    total = jnp.sum(other * along, axis=-1, keepdims=True)
    u, v = (ended, other) if rounds % 2 else (other, ended)
    return u, v, total


def _alternating(p: Array, sums: Array, rounds: int) -> tuple[Array, Array, Array]:
    def one_round(sums: Array) -> tuple[Array, Array]:
        """The next u, and v before it is divided by its largest entry."""
        u = unit_max(inverse(sums))
        return u, inverse(times(p.mT, u))

    def later(_: Array, last: tuple[Array, Array]) -> tuple[Array, Array]:
        return one_round(times(p, unit_max(last[1])))

    u, v = _repeated(later, one_round(sums), rounds - 1)
    total = jnp.sum((v != 0).astype(v.dtype), axis=-1, keepdims=True)
    largest = jnp.max(v, axis=-1, keepdims=True, initial=0.0)
    return u, unit_max(v), total * inverse(jax.lax.stop_gradient(largest))


def _ruiz(p: Array, sums: Array, rounds: int) -> tuple[Array, Array, Array]:
    def one_round(sums: Array, u: Array, v: Array) -> tuple[Array, Array]:
        squared = u * inverse(sums), v * inverse(times(p.mT, u))
        new_u, new_v = (unit_max(safe_root(x)) for x in squared)
        return new_u, new_v

    first = one_round(sums, jnp.ones_like(sums), jnp.ones_like(p[..., 0, :]))
    later = lambda _, last: one_round(times(p, last[1]), *last)
    u, v = _repeated(later, first, rounds - 1)
    return u, v, jnp.sum(u * times(p, v), axis=-1, keepdims=True)


def _repeated(f, start: tuple[Array, Array], count: int) -> tuple[Array, Array]:
    if not count:
        return start
    return jax.lax.fori_loop(0, count, f, start, unroll=count < _UNROLLED)
