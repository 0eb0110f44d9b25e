"""When bases are renewed, with which random keys, and how states change with them."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from optax_matrix._surroundings.joining import jointly
from optax_matrix._surroundings.layouts import identities_of
from optax_matrix.linalg import overlap
from optax_matrix.linalg.random import folded, seeded
from optax_matrix.linalg.scale import is_some, matrix_norm
from optax_matrix.transforms.low_rank._basis import (
    Basis,
    Subspace,
    identity_overlap,
)
from optax_matrix.transforms.low_rank._combine import coordinates
from optax_matrix.transforms.turns import any_of

Find = Callable[[Subspace], jax.Array]
Move = Callable[[Any, list], Any]
# From states of all stacks, and of the inner transformation, to new ones.
Renew = Callable[[dict, Any], tuple[dict, Any]]
Turn = tuple[jax.Array, list[Renew]]


class BasisState(NamedTuple):
    """The basis of one stack.

    Attributes:
        vectors: Columns U, ``(..., m, r)``, at least float32; None if not stored.
        tracked: The statistic that the basis tracks, such as the averaged Gram matrix
            of the coordinates, ``(..., r, r)``; None if it tracks nothing.
    """

    vectors: Any
    tracked: Any


def numbers_of(tree: Any) -> list:
    """Per stack the identities of its matrices; no numbers where they are unknown."""
    ids, structure = identities_of(tree), jax.tree.structure(tree)
    none = [()] * structure.num_leaves
    return none if ids is None else structure.flatten_up_to(ids)


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
        """A key for each matrix, the same until the next update that may renew it."""
        start = seeded(self.seed)
        epochs = [(count + x) // self.interval for x in self._phases(len(ids))]
        if self.basis.stored and self.below is not None:
            epochs = [count] * len(ids)  # Any update may.
        return [
            folded(jax.random.fold_in(start, epoch), i)
            for epoch, i in zip(epochs, ids, strict=True)
        ]

    def run(
        self,
        count: jax.Array,
        gradient: list,
        live: list,
        keys: list,
        carry: tuple[list, Any],
        move: Move | None,
    ) -> tuple[list, Any]:
        """Renews the bases that are due, and finds those that are missing.

        ``live`` says which matrices may change their basis, ``(..., 1, 1)``. ``carry``
        has a `BasisState` per stack and the state of the inner transformation, which
        ``move`` changes with ``U_new' U_old`` of all stacks.
        """
        stacks, _ = carry
        if not stacks:
            return carry
        numbers = range(len(stacks))
        groups = [[i] for i in numbers] if self.stagger else [list(numbers)]
        turns = [
            self._turn(group, count, gradient, live, keys, stacks, move)
            for group in groups
        ]
        which, options = turns[0] if len(turns) == 1 else _in_turn(turns)

        def outcome(renew: Renew) -> tuple:  # Nothing else passes the condition.
            held, inner_state = renew(dict(enumerate(stacks)), carry[1])
            vectors, tracked = zip(*held.values(), strict=True)
            return (vectors,) if move is None else (vectors, tracked, inner_state)

        branches = [functools.partial(outcome, renew) for renew in options]
        vectors, *rest = jax.lax.switch(which, branches)
        tracked, inner_state = rest or ([x.tracked for x in stacks], carry[1])
        return [*map(BasisState, vectors, tracked)], inner_state

    def _turn(self, group, count, gradient, live, keys, stacks, move) -> Turn:
        """The options of the stacks that are renewed under one condition."""
        due = (count + self._phases(len(stacks))[group[0]]) % self.interval == 0
        low = {i: self._is_low(gradient[i], live[i], stacks[i]) for i in group}
        # A first basis comes with the first gradient: at the first update, or later if
        # gradients have been zero so far or the state of the matrix was added later.
        lacks = {i: live[i] & ~is_some(stacks[i].vectors) for i in group}
        seek = any_of(lacks)
        some = due | any_of([x for x in low.values() if x is not None])

        def renewed(find: Find, held: dict, inner_state: Any) -> tuple[dict, Any]:
            parts = [{i: x[i] for i in group} for x in (gradient, live, held, keys)]
            one = functools.partial(_renewed, find, due)
            found = jointly(one, *parts, low)
            new = held | {i: held[i]._replace(vectors=u) for i, (u, _) in found.items()}
            if move is None:
                return new, inner_state
            change = [
                found[i][1] if i in found else identity_overlap(h.vectors.mT)
                for i, h in held.items()
            ]
            if (turn := self.basis.move) is not None:
                turned = {i: turn(held[i].tracked, change[i]) for i in group}
                new |= {i: new[i]._replace(tracked=x) for i, x in turned.items()}
            # Where first bases are found, nothing moves: there were no moments.
            keep = lambda x, old: jnp.where(some, x, old).astype(old.dtype)
            return new, jax.tree.map(keep, move(inner_state, change), inner_state)

        finds = [f for f in (self.basis.refresh, self.basis.start) if f is not None]
        first = jnp.where(seek, len(finds), 0)
        which = jnp.where(some & (count > 0), 1, first)
        return which, [_as_it_is, *(functools.partial(renewed, f) for f in finds)]

    def _is_low(self, g: jax.Array, live: Any, held: BasisState) -> jax.Array | None:
        """Which live matrices have a basis and small coordinates, ``(..., 1, 1)``."""
        if self.below is None:
            return None
        u = held.vectors
        sigma = coordinates(g, u)
        return live & is_some(u) & (matrix_norm(sigma) <= self.below)

    def _phases(self, number: int) -> list[int]:
        spread = self.interval if self.stagger else 0
        shifts = [i * spread // number for i in range(number)]
        return [(self.phase + shift) % self.interval for shift in shifts]


def _as_it_is(held: dict, inner_state: Any) -> tuple[dict, Any]:
    return held, inner_state


def _in_turn(turns: list[Turn]) -> Turn:
    """The turns of several groups under one condition.

    Nothing is due, one group's renewal is, or, at the start, more than that.
    """

    def together(held: dict, inner_state: Any) -> tuple[dict, Any]:
        state = held, inner_state
        for which, options in turns:
            for i, renew in enumerate(options[1:], 1):
                pick = lambda new, old, on=which == i: jnp.where(on, new, old)
                state = jax.tree.map(pick, renew(*state), state)
        return state

    each = jnp.stack([which for which, _ in turns])
    one = 1 + jnp.argmax(each)
    which = jnp.where(jnp.sum(each) == 1, one, len(turns) + 1)
    which = jnp.where(jnp.any(each > 0), which, 0)
    return which, [_as_it_is, *(options[1] for _, options in turns), together]


def _renewed(
    find, due, g, live, held: BasisState, key, low
) -> tuple[jax.Array, jax.Array]:
    """Bases of a stack, new where they are due or missing, and U_new' U_old."""
    old = held.vectors
    wanted = due | ~is_some(old)
    where = live & (wanted if low is None else wanted | low)
    u = new_vectors(find, g, held, key, where)
    return u, jnp.where(where, overlap(u, old), identity_overlap(old.mT))


def new_vectors(
    find: Find, g: jax.Array, held: BasisState, key: Any, where: jax.Array
) -> jax.Array:
    """The bases of a stack: new ones by ``find`` for some of its matrices."""
    old = held.vectors
    new = find(Subspace(g, old, held.tracked, key, old.shape[-1]))
    return jnp.where(where, new.astype(old.dtype), old)
