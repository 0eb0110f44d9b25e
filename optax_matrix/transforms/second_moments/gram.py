"""Averages of Gram matrices that neither overflow nor vanish.

Squaring entries of 1e20 overflows float32. The average is therefore stored as a
normalized matrix and the size of its largest entry, its peak.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from optax_matrix.linalg import cross_gram
from optax_matrix.linalg.products import Product, full_dot
from optax_matrix.linalg.scale import unit_peak


class Gram(NamedTuple):
    """The statistic ``peak**2 * normalized`` of a stack of matrices.

    Attributes:
        normalized: Symmetric matrices ``(..., p, p)``, at least float32, with entries
            of moderate size.
        peak: About the largest gradient entry still present in the average,
            ``(..., 1, 1)``. It decays with the average, so that ``normalized`` neither
            grows nor vanishes.
    """

    normalized: jax.Array
    peak: jax.Array


def no_gram(x: jax.Array) -> Gram:
    """The statistic before the first gradient ``(..., p, q)``: zeros."""
    zeros = jnp.zeros((*x.shape[:-1], x.shape[-2]), x.dtype)
    return Gram(zeros, jnp.zeros((*x.shape[:-2], 1, 1), x.dtype))


def mix_gram(
    old: Gram,
    x: jax.Array,
    decay: ArrayLike,
    weight: ArrayLike | None = None,
    dot: Product = full_dot,
) -> Gram:
    r"""Adds a Gram matrix to an average or a sum; a zero matrix only decays it.

    .. math::
        S \leftarrow \beta S + w X X^\top

    where w is ``weight``, by default :math:`1 - \beta`.
    """
    decay = jnp.asarray(decay, old.normalized.dtype)
    weight = 1 - decay if weight is None else weight
    _, peak = unit_peak(x)
    peak = jnp.where(jnp.any(x != 0, axis=(-2, -1), keepdims=True), peak, 0)
    scale = jnp.maximum(jnp.sqrt(decay) * old.peak, peak)
    safe = jnp.where(scale == 0, 1, scale)
    kept = decay * (old.peak / safe) ** 2 * old.normalized
    return Gram(kept + weight * (peak / safe) ** 2 * cross_gram(x, x, dot=dot), scale)
