"""The interface of a basis: how it starts, what it tracks and how it is renewed."""

import math
import numbers
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from optax_matrix.linalg.scale import is_some, is_usable


class Subspace(NamedTuple):
    """The inputs from which a basis is renewed; the projected side is the rows.

    Attributes:
        gradient: The gradient G, ``(..., m, n)``, at least float32.
        vectors: The last basis U, ``(..., m, r)``; zeros before the first one, None
            where the basis is not stored.
        tracked: The statistic that the basis tracks.
        key: A random key for each matrix, shape ``(...)``, or one for all. It stays the
            same until the next renewal.
        rank: The number of columns r, static.
    """

    gradient: jax.Array
    vectors: Any
    tracked: Any
    key: Any
    rank: int


class Basis(NamedTuple):
    r"""How `project_low_rank` finds its bases; every function takes one stack.

    A basis may track a statistic of the coordinates, any tree of arrays with the batch
    axes in front.

    Attributes:
        init: Function from zero coordinates ``(..., r, n)`` to the first statistic.
        track: Function from the statistic and the coordinates of a gradient to the new
            statistic.
        refresh: Function from a `Subspace` to the new basis ``(..., m, r)``.
        start: Function like ``refresh`` for the first basis; None for ``refresh``.
        move: Function from the statistic and :math:`U_{new}^\top U_{old}` to the
            statistic in the new basis, for ``transport="carry"``; None if the statistic
            does not depend on the basis.
        stored: Whether the basis is part of the state. If not, it is drawn from the key
            at every update, and must not depend on anything else.
    """

    init: Callable[[jax.Array], Any]
    track: Callable[[Any, jax.Array], Any]
    refresh: Callable[[Subspace], jax.Array]
    start: Callable[[Subspace], jax.Array] | None = None
    move: Callable[[Any, jax.Array], Any] | None = None
    stored: bool = True


def nothing_tracked(sigma: jax.Array) -> None:
    """`Basis.init` for bases that track nothing."""
    del sigma


def tracked_as_it_was(tracked: Any, sigma: jax.Array) -> Any:
    """`Basis.track` for bases that track nothing."""
    del sigma
    return tracked


def lacks_basis(g: jax.Array, vectors: jax.Array) -> jax.Array:
    """Which matrices have no basis yet, but a gradient, ``(..., 1, 1)``."""
    return is_usable(g) & ~is_some(vectors)


def rank_of(rank: Any, whole: int) -> int:
    """The number of columns that a rank means: at most ``whole``, or a fraction."""
    if not _is_fraction(rank):
        return min(int(rank), whole)
    # Less what binary fractions may add: 0.55 of 100 is 55, in float32, too.
    return max(math.ceil(float(rank) * whole * (1 - 1e-6)), min(whole, 1))


def rank_in(rank: Any, seen: jax.Array) -> int:
    """The number of columns that a rank means for a stack ``(..., m, n)``."""
    return rank_of(rank, min(seen.shape[-2:]))


def _is_fraction(rank: Any) -> bool:
    """Whether a rank is a real number, also one of NumPy, but not an integer."""
    return isinstance(rank, numbers.Real) and not isinstance(rank, numbers.Integral)


def no_vectors(rank: Any, seen: jax.Array) -> jax.Array:
    """The basis of a stack ``(..., m, n)`` before its first one: zeros."""
    return jnp.zeros((*seen.shape[:-1], rank_in(rank, seen)), seen.dtype)


def no_coordinates(rank: Any, seen: jax.Array, dtype: Any = None) -> jax.Array:
    """Coordinates of zeros ``(..., r, n)`` of a stack ``(..., m, n)``."""
    shape = (*seen.shape[:-2], rank_in(rank, seen), seen.shape[-1])
    return jnp.zeros(shape, dtype or seen.dtype)


def identity_overlap(sigma: jax.Array) -> jax.Array:
    """The overlap that means no change of basis, for coordinates ``(..., r, n)``."""
    eye = jnp.eye(sigma.shape[-2], dtype=sigma.dtype)
    return jnp.broadcast_to(eye, (*sigma.shape[:-2], *eye.shape))
