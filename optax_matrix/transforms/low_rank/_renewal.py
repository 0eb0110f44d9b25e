"""When bases are renewed, with which random numbers, and what follows from it."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from optax_matrix.linalg import overlap
from optax_matrix.linalg.random import folded, seeded
from optax_matrix.transforms.low_rank._basis import Basis, Subspace, is_some
from optax_matrix.transforms.low_rank._moment_transport import identity_overlap

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
        start = seeded(self.seed)
        epochs = [(count + x) // self.interval for x in self._phases(len(ids))]
        return [
            folded(jax.random.fold_in(start, epoch), i)
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
        """Renews what is due, and looks for what is missing.

        A matrix without a basis, as its gradients have been zero so far or its state
        was added later, gets one with a renewal or where ``count`` is a power of two.

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
        held, inner_state = [*carry[0]], carry[1]
        phases = self._phases(len(held))
        for group in self._groups(len(held)):
            due = (count + phases[group[0]]) % self.interval == 0
            seek = (count & (count - 1)) == 0  # Powers of two, and the first update.
            found = self._finding()
            last = jnp.where(seek, len(found), 0)
            which = jnp.where(due & (count > 0), 1, last)
            new = _New(
                group, due, gradient, keys, held, inner_state, move, self.basis.move
            )
            branches = [functools.partial(new.found_by, find) for find in found]
            vectors, moved = jax.lax.switch(which, [new.as_it_was, *branches])
            tracked, inner_state = moved or new.unmoved()
            for i, *parts in zip(group, vectors, tracked, strict=True):
                held[i] = BasisState(*parts)
        return held, inner_state

    def _finding(self) -> list[Find]:
        """What finds bases again, and last what finds first ones."""
        start = self.basis.start
        return [self.basis.refresh, *([] if start is None else [start])]

    def _groups(self, number: int) -> list[list[int]]:
        """The stacks that are renewed under one condition."""
        if self.stagger:
            return [[i] for i in range(number)]
        return [[*range(number)]] if number else []

    def _phases(self, number: int) -> list[int]:
        spread = self.interval if self.stagger else 0
        shifts = [i * spread // number for i in range(number)]
        return [(self.phase + shift) % self.interval for shift in shifts]


@dataclasses.dataclass(frozen=True)
class _New:
    """The two sides of a condition: only what a renewal changes goes through it."""

    group: list[int]
    due: jax.Array
    gradient: list
    keys: list
    held: list
    inner_state: Any
    move: Move | None
    move_tracked: Callable | None

    def unmoved(self) -> tuple[list, Any]:
        return [self.held[i].tracked for i in self.group], self.inner_state

    def as_it_was(self) -> tuple[list, Any]:
        vectors = [self.held[i].vectors for i in self.group]
        return vectors, None if self.move is None else self.unmoved()

    def found_by(self, find: Find) -> tuple[list, Any]:
        vectors, change = [], [identity_overlap(h.vectors.mT) for h in self.held]
        for i in self.group:
            old, g = self.held[i].vectors, self.gradient[i]
            here = has_gradient(g) & (self.due | ~is_some(old))
            new = new_vectors(find, g, self.held[i], self.keys[i], here)
            vectors.append(new)
            change[i] = jnp.where(here, overlap(new, old), change[i])
        if self.move is None:
            return vectors, None
        tracked = [self.held[i].tracked for i in self.group]
        if self.move_tracked is not None:
            pairs = zip(tracked, (change[i] for i in self.group), strict=True)
            tracked = [self.move_tracked(*pair) for pair in pairs]
        moved = self.move(self.inner_state, change)
        # What had no basis has no moments either.
        keep = lambda x, old: jnp.where(self.due, x, old).astype(old.dtype)
        inner_state = jax.tree.map(keep, moved, self.inner_state)
        return vectors, (tracked, inner_state)


def new_vectors(
    find: Find, g: jax.Array, held: BasisState, key: Any, where: jax.Array
) -> jax.Array:
    """New bases of some matrices.

    Args:
        find: What finds them.
        g: Gradients ``(..., m, n)``, projected side in rows.
        held: The old bases; zeros for none.
        key: A key for each matrix, or one.
        where: Which matrices get theirs, ``(..., 1, 1)``.

    Returns:
        Columns ``(..., m, r)``.
    """
    old = held.vectors
    new = find(Subspace(g, old, held.tracked, key, old.shape[-1]))
    return jnp.where(where, new.astype(old.dtype), old)


def has_gradient(g: jax.Array) -> jax.Array:
    """Which matrices are finite and not zero, ``(..., 1, 1)``."""
    return is_some(g) & jnp.all(jnp.isfinite(g), axis=(-2, -1), keepdims=True)
