"""Which owners get the matrices that are left over, so that all have equal work."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from optax_matrix.sharding._bundles import whole_matrix
from optax_matrix.sharding._cost_model import CostModel
from optax_matrix.sharding._exchange import Exchange


def work(rows: int, cols: int) -> float:
    """Relative work on a matrix: two products with the long side, one of the short.

    This is a step of Newton-Schulz; other methods grow as fast with both sides.
    """
    short, long = sorted((rows, cols))
    return 4.0 * short**2 * long + 2.0 * short**3


def work_of(exchange: Exchange) -> float:
    """Relative work on one of the matrices that are exchanged."""
    pieces = whole_matrix(exchange.view).pieces
    return sum(piece.count * work(piece.rows, piece.cols) for piece in pieces)


def time_of(exchange: Exchange, chips: int, model: CostModel) -> float:
    """Time of a matrix that a team shares, in operations of a step."""
    each, _ = model.sent(exchange, chips)
    return work_of(exchange) / chips + each * model.per_byte()


class Balance(NamedTuple):
    """Where the left-over matrices of exchanges go, and what each device has then.

    Attributes:
        starts: `Exchange.start` for each exchange.
        axes: Mesh axes of the arrays below.
        time: Time of each device, in operations of a step that it could do meanwhile.
        work: Operations of a step of each device.
        sent: Bytes that each device sends in its teams, in all steps.
    """

    starts: list[int]
    axes: list[str]
    time: np.ndarray
    work: np.ndarray
    sent: np.ndarray


def balance(exchanges: Sequence[Exchange], model: CostModel) -> Balance:
    """Gives left-over matrices to owners so that the busiest device has little work.

    The matrices that take most time come first; each group goes to consecutive teams
    among whom the busiest has least, and of those to whom all have least. All numbers
    are integers, so that every host finds the same.

    Args:
        exchanges: Exchanges on one mesh, whose `start` is not used.
        model: The cost of teams.

    Returns:
        The balance.
    """
    starts = [0] * len(exchanges)
    axes = sorted({a for e in exchanges for a in e.owners})
    sizes = [exchanges[0].sizes[a] for a in axes] if exchanges else []
    time, done, sent = (np.zeros(sizes, np.int64) for _ in range(3))
    costs = [_Cost.of(e, model) for e in exchanges]
    turns = sorted(range(len(exchanges)), key=lambda i: -costs[i].each)
    for turn, i in enumerate(turns):
        exchange, cost = exchanges[i], costs[i]
        order = [axes.index(a) for a in exchange.sharing]
        by_owner = np.moveaxis(time, order, range(len(order)))
        teams = exchange.ways // exchange.chips
        busy = by_owner.reshape(teams, -1).max(axis=1)
        all_have, rest = divmod(exchange.left_over, teams)
        first = _window(busy, rest) if rest else 0
        # Other members begin in other groups, as state and other blocks are not shared.
        starts[i] = first + teams * (turn % exchange.chips) if exchange.left_over else 0
        count = np.full(teams, all_have)
        count[(first + np.arange(rest)) % teams] += 1
        rounds = exchange.held // exchange.ways
        for total, alone, each, once in (
            (time, cost.alone, cost.each, cost.once),
            (done, cost.alone, cost.alone // exchange.chips, 0),
            (sent, 0, cost.each_sent, cost.once_sent),
        ):
            more = rounds * alone + count * each + (count > 0) * once
            more = np.repeat(more, exchange.chips)
            shape = [exchange.sizes[a] for a in exchange.sharing]
            shape += [1] * (total.ndim - len(order))
            view = np.moveaxis(total, order, range(len(order)))
            view += more.reshape(shape)
    return Balance(starts, axes, time, done, sent)


class _Cost(NamedTuple):
    """Costs of a matrix, rounded: whole, in a team, once for a team that has any."""

    alone: int
    each: int
    once: int
    each_sent: int
    once_sent: int

    @classmethod
    def of(cls, exchange: Exchange, model: CostModel) -> "_Cost":
        each, once = model.sent(exchange, exchange.chips)
        in_team = time_of(exchange, exchange.chips, model)
        per_byte = model.per_byte()
        numbers = work_of(exchange), in_team, once * per_byte, each, once
        return cls(*map(round, numbers))


def _window(busy: np.ndarray, count: int) -> int:
    """The first of `count` consecutive teams, in a circle, that have little work."""
    circle = np.concatenate([busy, busy[: count - 1]])
    windows = np.lib.stride_tricks.sliding_window_view(circle, count)
    return int(np.lexsort((windows.sum(axis=1), windows.max(axis=1)))[0])
