"""When bases are renewed, with which random numbers, and what follows from it."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from optax_matrix.linalg import overlap
from optax_matrix.transforms._basis import Basis, Subspace

Find = Callable[[Subspace], jax.Array]
Move = Callable[[Any, list], Any]


class BasisState(NamedTuple):
    """The basis of one stack.

    Attributes:
        vectors: Columns U, ``(..., m, r)``, at least float32; None if not stored.
        tracked: What the basis tracks, such as the averaged Gram matrix of the
            coordinates, ``(..., r, r)``; None for nothing.
    """

    vectors: Any
    tracked: Any


@dataclasses.dataclass(frozen=True)
class Renewal:
    """The renewal of the bases of a tree; what there is per stack comes as flat lists.

    Attributes:
        basis: The functions.
        interval: Number of updates between renewals.
        phase: What to add to the count of updates, so that renewals are its multiples.
        stagger: Whether every stack has a phase of its own.
        seed: Of the keys.
    """

    basis: Basis
    interval: int
    phase: int
    stagger: bool
    seed: int

    def keys(self, count: jax.Array, ids: list) -> list:
        """A key for each matrix, the same from one renewal of its stack to the next."""
        start = jax.random.key(self.seed)
        epochs = [(count + x) // self.interval for x in self._phases(len(ids))]
        return [
            _folded(jax.random.fold_in(start, epoch), jnp.asarray(i, jnp.uint32))
            for epoch, i in zip(epochs, ids, strict=True)
        ]

    def run(
        self,
        count: jax.Array,
        gradient: list,
        keys: list,
        carry: tuple[list, Any],
        move: Move | None,
    ) -> tuple[list, Any]:
        """Renews what is due.

        Args:
            count: Number of updates before this one.
            gradient: Per stack the gradients, projected side in rows.
            keys: What `keys` returns.
            carry: Per stack the `BasisState`, and the state of the inner
                transformation.
            move: From that state and ``U_new' U_old`` of all stacks to the new state;
                None if a new basis changes nothing.

        Returns:
            The new pair.
        """
        phases = self._phases(len(gradient))
        for group in self._groups(len(gradient)):
            due = (count + phases[group[0]]) % self.interval == 0
            renew = _renewing(group, gradient, keys, carry, move, self.basis.move)
            found = [self.basis.refresh]
            if self.basis.start is not None:
                found.append(self.basis.start)
            which = jnp.where(count == 0, len(found), due.astype(jnp.int32))
            branches = [lambda f=f, renew=renew: renew(f) for f in found]
            carry = jax.lax.switch(which, [lambda carry=carry: carry, *branches])
        return carry

    def _groups(self, number: int) -> list[list[int]]:
        """The stacks that are renewed under one condition."""
        if self.stagger:
            return [[i] for i in range(number)]
        return [[*range(number)]] if number else []

    def _phases(self, number: int) -> list[int]:
        spread = self.interval if self.stagger else 0
        shifts = [i * spread // number for i in range(number)]
        return [(self.phase + shift) % self.interval for shift in shifts]


def _renewing(
    group: list[int],
    gradient: list,
    keys: list,
    carry: tuple[list, Any],
    move: Move | None,
    move_tracked: Callable | None,
) -> Callable[[Find], tuple[list, Any]]:
    held, inner_state = carry

    def renew(find: Find) -> tuple[list, Any]:
        new = list(held)
        for i in group:
            vectors = new_vectors(find, gradient[i], held[i], keys[i])
            new[i] = held[i]._replace(vectors=vectors)
        if move is None:
            return new, inner_state
        change = [overlap(a.vectors, b.vectors) for a, b in zip(new, held, strict=True)]
        if move_tracked is not None:
            for i in group:
                tracked = move_tracked(new[i].tracked, change[i])
                new[i] = new[i]._replace(tracked=tracked)
        moved = move(inner_state, change)
        keep = lambda x, old: x.astype(old.dtype)
        return new, jax.tree.map(keep, moved, inner_state)

    return renew


def new_vectors(find: Find, g: jax.Array, held: BasisState, key: Any) -> jax.Array:
    """A new basis; the old one for a gradient that is zero or not finite.

    Args:
        find: What finds it.
        g: Gradients ``(..., m, n)``, projected side in rows.
        held: The old basis; zeros for none.
        key: A key for each matrix, or one.

    Returns:
        Columns ``(..., m, r)``.
    """
    old = held.vectors
    new = find(Subspace(g, old, held.tracked, key, old.shape[-1]))
    some = lambda x: jnp.any(x, axis=(-2, -1), keepdims=True)
    live = some(g != 0) & ~some(~jnp.isfinite(g))
    spare = jnp.where(some(old != 0), old, jnp.eye(*old.shape[-2:], dtype=old.dtype))
    return jnp.where(live, new.astype(old.dtype), spare)


def _folded(key: jax.Array, ids: jax.Array) -> jax.Array:
    """The key with a row of identities folded in, for every row."""

    def one(numbers):
        folded = key
        for number in numbers:
            folded = jax.random.fold_in(folded, number)
        return folded

    for _ in range(ids.ndim - 1):
        one = jax.vmap(one)
    return one(ids)
