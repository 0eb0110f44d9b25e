"""The factors of `whiten`: Q of each side, a matrix or the diagonal of one.

``Q'Q`` of both sides should whiten: the matrices times them, X, should have entries of
mean square one. Then the Gram matrix ``C = X X'`` of the rows of an ``m x n`` matrix is
``n I`` on average. A step moves Q by the difference,

    Q <- (I - rate / bound (C - n I)) Q,        bound >= |C - n I|.

The bound is what keeps Q alive. With it the bracket has eigenvalues of at least
``1 - rate``, so that Q stays invertible and no eigenvalue changes sign. Without it, one
gradient k times larger than those before makes C ``k^2`` times larger. The bracket gets
an eigenvalue of about ``1 - rate k^2``: Q changes sign and grows, so does C at the next
step, and Q diverges.

C is semidefinite, so ``|C - n I|`` is at most the larger of ``|C| - n`` and n. The code
takes ``|C| + n``, which holds even where `estimated_norm`, an estimate from below, is
too low by ``2 n``. The bound is an average over the steps, but never less than that of
the present gradient.

Nothing else fixes Q: ``R Q`` gives the same ``Q'Q`` for every rotation R. Products with
rounding would let it drift, so `procrustes_step` turns each Q back towards a symmetric
one. Nor do the sizes of both sides matter, only their product: `fitted` makes their
largest entries equal, since one would overflow while the other vanished.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from optax_matrix.linalg.precision import project, statistics
from optax_matrix.linalg.rotations import procrustes_step
from optax_matrix.linalg.scale import matrix_norm, unit_peak
from optax_matrix.linalg.spectral_norms import estimated_norm
from optax_matrix.transforms.sides import Pair, SideView

# Whitened entries are of size one. The bound keeps the squares of larger ones finite.
_LARGEST = 1e15


def identities(view: SideView, x: jax.Array) -> Pair:
    """Identities for the sides that have matrices, columns of ones for the others."""

    def of(x: jax.Array, is_matrix: bool) -> jax.Array:
        p = x.shape[-2]
        one = jnp.eye(p, dtype=x.dtype) if is_matrix else jnp.ones((p, 1), x.dtype)
        return jnp.broadcast_to(one, (*x.shape[:-1], one.shape[-1]))

    return Pair(of(x, view.rows), of(x.mT, view.cols))


def scale_of(g: jax.Array) -> jax.Array:
    """The root of a P that gives G a mean fourth power of one; finite for zeros."""
    unit, peak = unit_peak(g)
    fourth = jnp.mean(unit**4, axis=(-2, -1), keepdims=True)
    return jnp.where(fourth > 0, fourth, 1) ** -0.125 / jnp.sqrt(peak)


def fitted(
    x: jax.Array,
    factor: Pair,
    bound: Pair,
    *,
    rate: ArrayLike,
    decay: ArrayLike,
) -> tuple[Pair, Pair]:
    """The factors after a step towards whitening these matrices, and the bounds."""
    x, peak = unit_peak(x)  # The product of unscaled matrices may overflow.
    x = product(x, factor)
    x = x * jnp.minimum(peak, _LARGEST / unit_peak(x)[1])
    moved = partial(_moved, rate=rate, decay=decay)
    rows, left = moved(x, factor.rows, bound.rows)
    cols, right = moved(x.mT, factor.cols, bound.cols)
    largest = lambda q: jnp.max(abs(q), axis=(-2, -1), keepdims=True)
    balance = jnp.sqrt(largest(cols) / largest(rows))
    return Pair(rows * balance, cols / balance), Pair(left, right)


def _moved(
    x: jax.Array,
    q: jax.Array,
    bound: jax.Array,
    *,
    rate: ArrayLike,
    decay: ArrayLike,
) -> tuple[jax.Array, jax.Array]:
    """The factor of the rows of whitened matrices, and its bound."""
    n = x.shape[-1]
    if _is_matrix(q):
        c = statistics(x, x.mT)
        size = estimated_norm(c)
    else:
        c = jnp.sum(x * x, axis=-1, keepdims=True)
        size = jnp.max(c, axis=-2, keepdims=True)
    decay, rate = (jnp.asarray(number, x.dtype) for number in (decay, rate))
    last = size + n  # A bound on the norm of C - n I.
    bound = jnp.maximum(decay * bound + (1 - decay) * last, last)
    c = c / bound
    if not _is_matrix(q):
        return q - rate * (c - n / bound) * q, bound
    q = q - rate * (project(c, q) - n / bound * q)
    return procrustes_step(q), bound


def product(x: jax.Array, factor: Pair) -> jax.Array:
    """The matrices times ``Q'Q`` of both sides."""
    for q in factor:
        x = (project(q.mT, project(q, x)) if _is_matrix(q) else q * q * x).mT
    return x


def rms(x: jax.Array) -> jax.Array:
    """Root mean squares, ``(..., 1, 1)``."""
    return matrix_norm(x) / (x.shape[-2] * x.shape[-1]) ** 0.5


def _is_matrix(q: jax.Array) -> bool:
    return q.shape[-1] == q.shape[-2]
