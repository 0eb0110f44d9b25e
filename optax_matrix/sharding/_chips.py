"""How many chips share the work on a matrix, decided for each shape."""

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from optax_matrix.sharding._balance import balance, time_of
from optax_matrix.sharding._cost_model import CostModel
from optax_matrix.sharding._exchange import Exchange

Shape = tuple[int, int]
"""The sides of a matrix, the shorter one first."""


def with_chips(exchanges: Sequence[Exchange], plan: Any) -> list[Exchange]:
    """The exchanges with their teams.

    Args:
        exchanges: Exchanges on one mesh.
        plan: The argument of `owners`.

    Returns:
        The same exchanges with `Exchange.chips` and `Exchange.start`.

    Raises:
        ValueError: If a plan given by hand does not fit.
    """
    model = model_of(plan)
    if isinstance(plan, Mapping):
        chips = _given(exchanges, plan)
    else:
        chips = {} if plan == "whole" else cheapest_chips(exchanges, model)
    shared = _shared(exchanges, chips)
    starts = balance(shared, model).starts
    return [
        dataclasses.replace(exchange, start=start)
        for exchange, start in zip(shared, starts, strict=True)
    ]


def model_of(plan: Any) -> CostModel:
    """The cost model by which a plan is made, or the default one."""
    return plan if isinstance(plan, CostModel) else CostModel()


def cheapest_chips(exchanges: Sequence[Exchange], model: CostModel) -> dict[Shape, int]:
    """The numbers of chips for which the busiest device takes least time.

    Candidates are the powers of two with which a matrix takes less time than whole.
    All shapes start with the same number, for every such number, and then change one
    at a time as long as that helps. Of plans that take the same time, the one with
    fewer bytes is better, then the one with less work.

    Args:
        exchanges: Exchanges on one mesh.
        model: The cost of work and of teams.

    Returns:
        Chips for each shape that does not stay whole.
    """
    candidates = _candidates(exchanges, model)

    @functools.cache
    def cost(chips: tuple[int, ...]) -> tuple[int, ...]:
        plan = dict(zip(candidates, chips, strict=True))
        found = balance(_shared(exchanges, plan), model)
        return tuple(int(x.max()) for x in (found.time, found.sent, found.work))

    def neighbours(chips: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        for i, levels in enumerate(candidates.values()):
            yield from ((*chips[:i], c, *chips[i + 1 :]) for c in levels)

    def settled(chips: tuple[int, ...]) -> tuple[int, ...]:
        better = min(neighbours(chips), key=cost)
        return chips if cost(better) >= cost(chips) else settled(better)

    every = sorted({c for levels in candidates.values() for c in levels})
    at_most = lambda c: tuple(
        max(x for x in xs if x <= c) for xs in candidates.values()
    )
    best = min((settled(at_most(c)) for c in every), key=cost, default=())
    return {s: c for s, c in zip(candidates, best, strict=True) if c > 1}


def _candidates(
    exchanges: Sequence[Exchange], model: CostModel
) -> dict[Shape, list[int]]:
    """For each shape that it may pay to share, the numbers of chips, 1 included."""
    found: dict[Shape, list[int]] = {}
    for exchange in exchanges:
        if not exchange.left_over:
            continue
        levels = [2**i for i in range(exchange.ways.bit_length())]
        alone = time_of(exchange, 1, model)
        pays = [c for c in levels if time_of(exchange, c, model) < alone]
        if pays:
            found.setdefault(shape_of(exchange), [1, *pays])
    return found


def shape_of(exchange: Exchange) -> Shape:
    """The sides of the matrices that are exchanged, the shorter one first."""
    short, long = sorted((exchange.view.rows, exchange.view.cols))
    return short, long


def _shared(
    exchanges: Sequence[Exchange], chips: Mapping[Shape, int]
) -> list[Exchange]:
    """The exchanges with teams of as many chips, where they divide the owners."""
    number = lambda e: math.gcd(chips.get(shape_of(e), 1), e.ways) if e.left_over else 1
    return [dataclasses.replace(e, chips=number(e)) for e in exchanges]


def _given(
    exchanges: Sequence[Exchange], plan: Mapping[Shape, int]
) -> dict[Shape, int]:
    """A plan given by hand, checked against the matrices."""
    chips = {}
    shapes = sorted({shape_of(exchange) for exchange in exchanges})
    for sides, number in plan.items():
        short, long = sorted(sides)
        chips[short, long] = number
        if shapes and (short, long) not in shapes:
            raise ValueError(
                f"`plan` must name shapes of matrices, got {sides}, but they have "
                f"{', '.join(map(str, shapes))}; leave it out."
            )
    for exchange in exchanges:
        number, ways = chips.get(shape_of(exchange), 1), exchange.ways
        if exchange.left_over and ways % number and number % ways:
            raise ValueError(
                "`plan` must give numbers of chips that divide the owners, got "
                f"{number} for {shape_of(exchange)} with {ways} owners along "
                f"{exchange.sharing}; give a divisor of {ways}."
            )
    return chips
