"""What a basis of a subspace is: how it starts, what it tracks, how it is renewed."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Subspace(NamedTuple):
    """What a basis is renewed from; the projected side is the rows.

    Attributes:
        gradient: The gradient G, ``(..., m, n)``, at least float32.
        vectors: The last basis U, ``(..., m, r)``; zeros before the first, None where
            none is stored.
        tracked: What the basis tracks.
        key: A random key for each matrix, shape ``(...)``, or one for all; the same
            until the next renewal.
        rank: The number of columns r, static.
    """

    gradient: jax.Array
    vectors: Any
    tracked: Any
    key: Any
    rank: int


class Basis(NamedTuple):
    r"""How `project_low_rank` comes to its bases; every function is of one stack.

    Attributes:
        init: From zero coordinates ``(..., r, n)`` to what is tracked (any tree with
            the batch axes in front).
        track: From the tracked and the coordinates of a gradient to the tracked.
        refresh: From a `Subspace` to the new basis ``(..., m, r)``.
        start: The same for the first update; None for ``refresh``.
        move: From the tracked and :math:`U_{new}^\top U_{old}` to the tracked in the
            new basis, for ``transport="carry"``; None if it does not depend on it.
        stored: Whether the basis is state. If not, it is drawn anew from the key at
            every update, and must depend on nothing else.
    """

    init: Callable[[jax.Array], Any]
    track: Callable[[Any, jax.Array], Any]
    refresh: Callable[[Subspace], jax.Array]
    start: Callable[[Subspace], jax.Array] | None = None
    move: Callable[[Any, jax.Array], Any] | None = None
    stored: bool = True


def nothing_tracked(sigma: jax.Array) -> None:
    """The `Basis.init` of bases that track nothing."""
    del sigma


def tracked_as_it_was(tracked: Any, sigma: jax.Array) -> Any:
    """The `Basis.track` of bases that track nothing."""
    del sigma
    return tracked


def is_some(x: jax.Array) -> jax.Array:
    """Which matrices are not zero, ``(..., 1, 1)``."""
    return jnp.any(x != 0, axis=(-2, -1), keepdims=True)
