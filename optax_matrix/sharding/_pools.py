"""Moves what `Exchange` cuts: the collectives of a step.

The last round of a group of K matrices has less than N of them for N owners, but every
device would send and get as much as in a full round: the rest is padding. Groups whose
last rounds have different owners (a pool) therefore share one collective. Each owner
gets the parts of its one matrix, of whichever group, padded to the largest part.

Everything but `pools_of` and `numbers_sent` runs inside a `shard_map`.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from optax_matrix.sharding._collectives import (
    all_gather,
    all_to_all,
    all_to_all_flat,
    gathered,
    here,
    most,
)
from optax_matrix.sharding._exchange import Exchange


@dataclasses.dataclass(frozen=True)
class Pool:
    """Exchanges whose last rounds travel together, that with the largest part first.

    No owner has matrices of two of them in these rounds. All have the same axes.

    Attributes:
        members: Places of the exchanges among those of the step.
        exchanges: The exchanges.
    """

    members: tuple[int, ...]
    exchanges: tuple[Exchange, ...]

    @functools.cached_property
    def has_matrix(self) -> np.ndarray:
        """Which owners have a matrix, by replica and place."""
        return np.any([x.in_last_round for x in self.exchanges], axis=0)

    @functools.cached_property
    def size(self) -> int:
        """Numbers of the largest part."""
        return max(math.prod(x.part) for x in self.exchanges)

    @functools.cached_property
    def numbers_sent(self) -> int:
        """Numbers that a device sends to others in these rounds, there and back."""
        return _numbers_sent(self.exchanges[0], self.size, 1, self.has_matrix)

    def and_another(self, number: int, exchange: Exchange) -> "Pool | None":
        """The pool with another exchange; None if impossible or no saving."""
        first = self.exchanges[0]
        axes = lambda x: (x.split_axes, x.replicated_axes, x.ownership.shard_axes)
        if axes(exchange) != axes(first):
            return None
        if (self.has_matrix & exchange.in_last_round).any():
            return None
        both = Pool((*self.members, number), (*self.exchanges, exchange))
        apart = Pool((number,), (exchange,)).numbers_sent + self.numbers_sent
        return both if both.numbers_sent < apart else None

    def to_owners(self, chunks: Sequence[Array]) -> list[Array]:
        """The chunks of all devices for this one, from those for all owners."""
        first = self.exchanges[0]
        if not first.split_axes:
            return list(chunks)
        replica, _ = here(first)
        mine = [jnp.asarray(x.in_last_round)[replica] for x in self.exchanges]
        pooled, rounds = self._swapped(chunks, mine)
        return self._with_last(rounds, self._own(pooled))

    def from_owners(self, chunks: Sequence[Array]) -> list[Array]:
        """The chunks of all owners, from this one's for all devices."""
        first = self.exchanges[0]
        pooled, rounds = self._swapped(chunks, self._is_here())
        pooled = all_gather(first, pooled, self.has_matrix)
        rounds = [gathered(first, x, np.ones(1, bool)) for x in rounds]
        return self._with_last(rounds, [pooled for _ in rounds])

    @functools.cached_property
    def carried(self) -> int | None:
        """The place of the exchange whose full rounds travel with the pool.

        If all have full rounds, those of one do, so that there are no more collectives
        than exchanges: the smallest ones, as they have to wait for the others.
        """
        counts = [x.ownership.matrices_per_owner - 1 for x in self.exchanges]
        if self.exchanges[0].replicated_axes or not all(counts):
            return None
        parts = [math.prod(x.part) for x in self.exchanges]
        sizes = [n * part for n, part in zip(counts, parts, strict=True)]
        return sizes.index(min(sizes))

    def _swapped(
        self, chunks: Sequence[Array], kept: Sequence[Array]
    ) -> tuple[Array, list[Array]]:
        """The pooled last rounds and the full rounds, after their ``all_to_all``."""
        first, pooled = self.exchanges[0], self._pooled(chunks, kept)
        rounds = [x[:, :-1] for x in chunks]
        found = [
            all_to_all(first, x) if x.shape[1] and i != self.carried else x
            for i, x in enumerate(rounds)
        ]
        if (i := self.carried) is None:
            return all_to_all_flat(first, pooled), found
        flat = rounds[i].reshape(len(pooled), -1)
        both = all_to_all_flat(first, jnp.concatenate([pooled, flat], axis=1))
        found[i] = both[:, self.size :].reshape(rounds[i].shape)
        return both[:, : self.size], found

    def _pooled(self, chunks: Sequence[Array], kept: Sequence[Array]) -> Array:
        """The last rounds ``(places, size)``: of each exchange where it is kept."""
        pooled = jnp.zeros((len(chunks[0]), self.size), chunks[0].dtype)
        for x, own in zip(chunks, kept, strict=True):
            last = x[:, -1].reshape(len(x), -1)
            last = jnp.pad(last, [(0, 0), (0, self.size - last.shape[1])])
            pooled = jnp.where(own.reshape(-1, 1), last, pooled)
        return pooled

    def _own(self, pooled: Array) -> list[Array]:
        """The last round of each exchange: zeros but for that of this owner."""
        nothing = jnp.zeros_like(pooled)
        return [jnp.where(own, pooled, nothing) for own in self._is_here()]

    def _is_here(self) -> list[Array]:
        """For each exchange whether this owner has one of its matrices."""
        replica, place = here(self.exchanges[0])
        return [jnp.asarray(x.in_last_round)[replica, place] for x in self.exchanges]

    def _with_last(
        self, rounds: Sequence[Array], pooled: Sequence[Array]
    ) -> list[Array]:
        """The rounds of each exchange and behind them its last one."""
        made = []
        for exchange, x, last in zip(self.exchanges, rounds, pooled, strict=True):
            last = last[:, : math.prod(exchange.part)]
            last = last.reshape(len(last), 1, *exchange.part)
            made.append(jnp.concatenate([x, last], axis=1))
        return made


def pools_of(exchanges: Sequence[Exchange], kinds: Sequence[Any]) -> list[Pool]:
    """The pools of at least two exchanges. Those of one pool have one kind.

    The largest parts come first, so that a pool's size is that of its first exchange.
    """
    found: list[tuple[Any, Pool]] = []
    order = sorted(range(len(kinds)), key=lambda i: -math.prod(exchanges[i].part))
    for i in order:
        if not exchanges[i].in_last_round.any():
            continue
        for k, (kind, pool) in enumerate(found):
            if kind == kinds[i] and (both := pool.and_another(i, exchanges[i])):
                found[k] = kind, both
                break
        else:
            found.append((kinds[i], Pool((i,), (exchanges[i],))))
    return [pool for _, pool in found if len(pool.members) > 1]


def numbers_sent(
    exchanges: Sequence[Exchange], kinds: Sequence[Any], pooled: bool
) -> list[int]:
    """Numbers that a device sends to others for each exchange, there and back.

    Those of a pool are counted for its first exchange.
    """
    pools, sent = pools_of(exchanges, kinds) if pooled else [], []
    members = {i for pool in pools for i in pool.members}
    for i, exchange in enumerate(exchanges):
        count, real = exchange.ownership.matrices_per_owner, exchange.is_real
        if i in members:
            count, real = count - 1, np.ones((1, exchange.places[1]), bool)
            real = real.repeat(count, axis=1)
        size = math.prod(exchange.part)
        sent.append(_numbers_sent(exchange, size, count, real))
    for pool in pools:
        sent[pool.members[0]] += pool.numbers_sent
    return sent


def to_owners(
    exchanges: Sequence[Exchange],
    leaves: Sequence[Sequence[Array]],
    wire_dtype: Any,
    pooled: bool,
    unreduced: Sequence[tuple[str, ...]],
) -> list[Array]:
    """This device's whole matrices of each exchange, from its parts of leaves.

    Last rounds are pooled with `pooled`. The parts travel in `wire_dtype` where that is
    narrower than their own. The leaves of an exchange are `unreduced` along some axes.
    """
    chunks = [
        exchange.chunks(parts, wire_dtype, axes)
        for exchange, parts, axes in zip(exchanges, leaves, unreduced, strict=True)
    ]
    pools = pools_of(exchanges, [x.dtype for x in chunks]) if pooled else []
    found = _moved(exchanges, chunks, pools, Pool.to_owners, all_to_all)
    return [
        exchange.joined(x, parts[0].dtype)
        for exchange, x, parts in zip(exchanges, found, leaves, strict=True)
    ]


def from_owners(
    exchanges: Sequence[Exchange],
    matrices: Sequence[Array],
    wire_dtype: Any,
    pooled: bool,
) -> list[list[Array]]:
    """This device's parts of the leaves of each exchange, from its whole matrices."""
    chunks = [
        exchange.cut(x, wire_dtype)
        for exchange, x in zip(exchanges, matrices, strict=True)
    ]
    pools = pools_of(exchanges, [x.dtype for x in chunks]) if pooled else []
    swap = lambda x, chunks: gathered(x, all_to_all(x, chunks), x.is_real)
    found = _moved(exchanges, chunks, pools, Pool.from_owners, swap)
    return [
        exchange.leaves(x, whole.dtype)
        for exchange, x, whole in zip(exchanges, found, matrices, strict=True)
    ]


def _moved(
    exchanges: Sequence[Exchange],
    chunks: Sequence[Array],
    pools: Sequence[Pool],
    together: Any,
    alone: Any,
) -> list[Array]:
    """All chunks after their collectives."""
    found: dict[int, Array] = {}
    for pool in pools:
        moved = together(pool, [chunks[i] for i in pool.members])
        found |= dict(zip(pool.members, moved, strict=True))
    for i, exchange in enumerate(exchanges):
        if i not in found:
            found[i] = alone(exchange, chunks[i])
    return [found[i] for i in range(len(exchanges))]


def _numbers_sent(exchange: Exchange, size: int, count: int, real: np.ndarray) -> int:
    """Numbers sent there and back of `count` matrices an owner, of so many numbers."""
    replicas, places = exchange.places
    return (2 * count * (places - 1) + most(real) * (replicas - 1)) * size
