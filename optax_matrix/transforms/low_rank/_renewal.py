"""When bases are renewed, with which random keys, and how states change with them."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from optax_matrix.linalg import overlap
from optax_matrix.linalg.random import folded, seeded
from optax_matrix.transforms.low_rank._basis import Basis, Subspace, is_some
from optax_matrix.transforms.low_rank._combine import coordinates
from optax_matrix.transforms.low_rank._moment_transport import identity_overlap
from optax_matrix.transforms.numerics import matrix_norm

Find = Callable[[Subspace], jax.Array]
Move = Callable[[Any, list], Any]


class BasisState(NamedTuple):
    """The basis of one stack.

    Attributes:
        vectors: Columns U, ``(..., m, r)``, at least float32; None if not stored.
        tracked: The statistic that the basis tracks, such as the averaged Gram matrix
            of the coordinates, ``(..., r, r)``; None if it tracks nothing.
    """

    vectors: Any
    tracked: Any


@dataclasses.dataclass(frozen=True)
class Renewal:
    """The renewal of the bases of a tree, whose stacks are passed as flat lists.

    Attributes:
        basis: The functions that define the basis.
        interval: Number of updates between renewals.
        phase: Offset added to the count of updates; a renewal is due where the sum is a
            multiple of ``interval``.
        stagger: Whether every stack has its own phase.
        seed: Seed of the keys.
        below: Norm of the coordinates in the old basis at which one matrix is renewed
            besides; None for no such renewals.
    """

    basis: Basis
    interval: int
    phase: int
    stagger: bool
    seed: int
    below: Any = None

    def keys(self, count: jax.Array, ids: list) -> list:
        """A key for each matrix.

        It is constant between two renewals of its stack by the interval. With ``below``
        a stored basis may be renewed at any update, so that each has a key of its own.
        """
        start = seeded(self.seed)
        epochs = [(count + x) // self.interval for x in self._phases(len(ids))]
        if self.basis.stored and self.below is not None:
            epochs = [count] * len(ids)
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
        """Renews the bases that are due, and finds those that are missing.

        A matrix has no basis if its gradients have been zero so far or its state was
        added later. It gets one at a renewal or where ``count`` is a power of two.

        Args:
            count: Number of updates before this one.
            gradient: Per stack the gradients, with the projected side as rows.
            keys: Per stack the keys that `keys` returns.
            carry: Per stack the `BasisState`, and the state of the inner
                transformation.
            move: Function from the inner state and ``U_new' U_old`` of all stacks to
                the new inner state; None if a new basis does not change it.

        Returns:
            The new ``carry``.
        """
        held, inner_state = [*carry[0]], carry[1]
        phases = self._phases(len(held))
        for group in self._groups(len(held)):
            due = (count + phases[group[0]]) % self.interval == 0
            seek = (count & (count - 1)) == 0  # Powers of two, and the first update.
            found = self._finding()
            last = jnp.where(seek, len(found), 0)
            where: list = [due] * len(held)
            if self.below is not None:
                for i in group:
                    where[i] = due | self._is_low(gradient[i], held[i].vectors)
            some = functools.reduce(jnp.logical_or, (jnp.any(where[i]) for i in group))
            which = jnp.where(some & (count > 0), 1, last)
            new = _New(
                *(group, some, where, gradient, keys, held, inner_state, move),
                self.basis.move,
            )
            branches = [functools.partial(new.found_by, find) for find in found]
            vectors, moved = jax.lax.switch(which, [new.as_it_was, *branches])
            tracked, inner_state = moved or new.unmoved()
            for i, *parts in zip(group, vectors, tracked, strict=True):
                held[i] = BasisState(*parts)
        return held, inner_state

    def _is_low(self, g: jax.Array, u: jax.Array) -> jax.Array:
        """Which matrices have a basis and small coordinates, ``(..., 1, 1)``."""
        return is_some(u) & (matrix_norm(coordinates(g, u)) <= self.below)

    def _finding(self) -> list[Find]:
        """The functions that find bases; the last one finds first bases."""
        start = self.basis.start
        return [self.basis.refresh, *([] if start is None else [start])]

    def _groups(self, number: int) -> list[list[int]]:
        """The groups of stacks that are renewed under one condition."""
        if self.stagger:
            return [[i] for i in range(number)]
        return [[*range(number)]] if number else []

    def _phases(self, number: int) -> list[int]:
        spread = self.interval if self.stagger else 0
        shifts = [i * spread // number for i in range(number)]
        return [(self.phase + shift) % self.interval for shift in shifts]


@dataclasses.dataclass(frozen=True)
class _New:
    """The branches of a condition; only values that a renewal changes pass through."""

    group: list[int]
    due: jax.Array
    where: list
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
            here = has_gradient(g) & (self.where[i] | ~is_some(old))
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
        # A matrix that had no basis has no moments either.
        keep = lambda x, old: jnp.where(self.due, x, old).astype(old.dtype)
        inner_state = jax.tree.map(keep, moved, self.inner_state)
        return vectors, (tracked, inner_state)


def new_vectors(
    find: Find, g: jax.Array, held: BasisState, key: Any, where: jax.Array
) -> jax.Array:
    """Finds new bases for some matrices of a stack.

    Args:
        find: Function from a `Subspace` to the new bases.
        g: Gradients ``(..., m, n)``, with the projected side as rows.
        held: The old bases; zeros where there is none.
        key: A key for each matrix, or one for all.
        where: Which matrices get a new basis, ``(..., 1, 1)``.

    Returns:
        The bases ``(..., m, r)``: new where ``where`` is true, and otherwise old.
    """
    old = held.vectors
    new = find(Subspace(g, old, held.tracked, key, old.shape[-1]))
    return jnp.where(where, new.astype(old.dtype), old)


def has_gradient(g: jax.Array) -> jax.Array:
    """Which gradients are finite and not zero, ``(..., 1, 1)``."""
    return is_some(g) & jnp.all(jnp.isfinite(g), axis=(-2, -1), keepdims=True)
