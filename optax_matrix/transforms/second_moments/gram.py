"""Averages of Gram matrices that neither overflow nor vanish.

Squaring entries of 1e20 overflows float32. The average is therefore stored as a
normalized matrix and the size of its largest entry, its peak.
"""

import warnings
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from optax_matrix.linalg.precision import statistics
from optax_matrix.linalg.scale import is_some, unit_peak
from optax_matrix.transforms.sides import SideView

# The side of a square matrix that is warned of, and how many times the numbers of its
# matrix it has: 0.4 GB in float32, and usually those of an embedding or a head.
_WIDE, _TIMES = 10_000, 16


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


class Scaled(NamedTuple):
    """Matrices divided by their largest entry, and that entry: 0 if it is zero."""

    unit: jax.Array
    peak: jax.Array

    @property
    def mT(self) -> "Scaled":
        """The transposes."""
        return Scaled(self.unit.mT, self.peak)


def scaled(x: jax.Array) -> Scaled:
    """Scales matrices ``(..., p, q)``, once for the statistics of both sides."""
    unit, peak = unit_peak(x)
    return Scaled(unit, jnp.where(is_some(x), peak, 0))


def mix_gram(
    old: Gram,
    x: Scaled,
    decay: ArrayLike,
    weight: ArrayLike | None = None,
) -> Gram:
    r"""Adds a Gram matrix to an average or a sum; a zero matrix only decays it.

    .. math::
        S \leftarrow \beta S + w X X^\top

    where w is ``weight``, by default :math:`1 - \beta`.

    Raises:
        ValueError: If the average is that of other matrices. Those of one row would be
            broadcast.
    """
    shape = (*x.unit.shape[:-1], x.unit.shape[-2])
    if old.normalized.shape != shape:
        raise ValueError(
            f"`old` must have Gram matrices {shape} for matrices {x.unit.shape}, got "
            f"{old.normalized.shape}; pass the state of these matrices and this side."
        )
    decay = jnp.asarray(decay, old.normalized.dtype)
    weight = 1 - decay if weight is None else weight
    scale = jnp.maximum(jnp.sqrt(decay) * old.peak, x.peak)
    safe = jnp.where(scale == 0, 1, scale)
    kept = decay * (old.peak / safe) ** 2 * old.normalized
    new = weight * (x.peak / safe) ** 2 * statistics(x.unit, x.unit.mT)
    return Gram(kept + new, scale)


def warn_of_wide_sides(view: SideView, x: jax.Array) -> None:
    """Warns if Gram matrices ``(..., p, p)`` are much larger than their matrices."""
    m, n = x.shape[-2:]
    side = max(m * view.rows, n * view.cols)
    if side > max(_WIDE, _TIMES * min(m, n)):
        warnings.warn(  # noqa: B028 (shown once)
            f"The square matrices of a side of {side:,} have {side / min(m, n):.0f} "
            f"times the numbers of the matrix itself, {m:,} x {n:,}. Cut it by "
            "`block_size`, give `max_dim` (recipes), above which a side has none, or "
            "leave it to the other optimizer with `dimension_numbers`."
        )
