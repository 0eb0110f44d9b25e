"""How many owners share the work on a matrix of the last round, for each shape."""

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from optax_matrix.sharding._ownership import Ownership
from optax_matrix.sharding.teams._balance import balanced
from optax_matrix.sharding.teams._cost_model import CostModel, cost

Sides = tuple[int, int]  # Of a matrix, the shorter one first.


def with_teams(ownerships: Sequence[Ownership], teams: Any) -> list[Ownership]:
    """Chooses every `team_size`, by the argument of `owners`, and every `offset`."""
    model = model_of(teams)
    if isinstance(teams, Mapping):
        sizes = _given(ownerships, teams)
    else:
        sizes = {} if teams is None else cheapest_sizes(ownerships, model)
    return balanced(_sized(ownerships, sizes), model)[0]


def model_of(teams: Any) -> CostModel:
    """The cost model by which teams are chosen, or the default one."""
    return teams if isinstance(teams, CostModel) else CostModel()


def cheapest_sizes(
    ownerships: Sequence[Ownership], model: CostModel
) -> dict[Sides, int]:
    """The sizes for which the busiest device takes least time, of shapes with teams.

    Candidates are the powers of two with which a matrix takes less time than whole. All
    shapes start with the same size, for every such size, and then change one at a time
    as long as that helps. Of sizes that take the same time, those with fewer bytes are
    better, then those with less work.
    """
    candidates = _candidates(ownerships, model)

    @functools.cache
    def price(sizes: tuple[int, ...]) -> tuple[int, ...]:
        chosen = dict(zip(candidates, sizes, strict=True))
        _, load = balanced(_sized(ownerships, chosen), model)
        return tuple(int(x.max()) for x in (load.time, load.sent, load.work))

    def neighbours(sizes: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        for i, levels in enumerate(candidates.values()):
            yield from ((*sizes[:i], c, *sizes[i + 1 :]) for c in levels)

    def descended(sizes: tuple[int, ...]) -> tuple[int, ...]:
        better = min(neighbours(sizes), key=price)
        return sizes if price(better) >= price(sizes) else descended(better)

    every = sorted({c for levels in candidates.values() for c in levels})
    at_most = lambda c: tuple(
        max(x for x in xs if x <= c) for xs in candidates.values()
    )
    best = min((descended(at_most(c)) for c in every), key=price, default=())
    return {s: c for s, c in zip(candidates, best, strict=True) if c > 1}


def _candidates(
    ownerships: Sequence[Ownership], model: CostModel
) -> dict[Sides, list[int]]:
    """The sizes, 1 included, for each shape of which it may pay to share a matrix."""
    found: dict[Sides, list[int]] = {}
    for own in ownerships:
        time = lambda size, own=own: cost(own.matrix, size, model).time
        sizes = [2**i for i in range(own.owners_per_shard.bit_length())]
        pays = [c for c in sizes if time(c) < time(1)] if own.remainder else []
        if pays:
            found.setdefault(own.sides, [1, *pays])
    return found


def _sized(
    ownerships: Sequence[Ownership], sizes: Mapping[Sides, int]
) -> list[Ownership]:
    """Teams of these sizes; of a smaller one where those do not divide the owners."""

    def sized(own: Ownership) -> Ownership:
        size = math.gcd(sizes.get(own.sides, 1), own.owners_per_shard)
        changes = own.remainder and size != own.team_size
        return dataclasses.replace(own, team_size=size) if changes else own

    return list(map(sized, ownerships))


def _given(
    ownerships: Sequence[Ownership], teams: Mapping[Sides, int]
) -> dict[Sides, int]:
    """Sizes given by hand, checked against the matrices."""
    sizes = {}
    shapes = sorted({own.sides for own in ownerships})
    for sides, size in teams.items():
        short, long = sorted(sides)
        sizes[short, long] = size
        if shapes and (short, long) not in shapes:
            raise ValueError(
                f"`teams` must name shapes of matrices, got {sides}, but they have "
                f"{', '.join(map(str, shapes))}; leave it out."
            )
    for own in ownerships:
        size, devices = sizes.get(own.sides, 1), own.owners_per_shard
        if own.remainder and devices % size and size % devices:
            raise ValueError(
                "`teams` must give sizes that divide the owners, got "
                f"{size} for {own.sides} with {devices} owners along "
                f"{own.shard_axes}; give a divisor of {devices}."
            )
    return sizes
