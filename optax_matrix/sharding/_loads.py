"""What the busiest device has to do and to send for exchanged matrices."""

import math
from collections.abc import Sequence

import numpy as np

from optax_matrix.sharding._balance import work_of
from optax_matrix.sharding._cost_model import CostModel
from optax_matrix.sharding._exchange import Exchange


def busiest(
    exchanges: Sequence[Exchange],
    inside: Sequence[int] | None = None,
    padded: bool = False,
) -> float:
    """Work of the busiest device over an even split among all devices of the mesh.

    Along mesh axes that neither own matrices nor split them, all devices do the same.

    Args:
        exchanges: Exchanges on one mesh.
        inside: For each exchange the number of devices among which mesh axes that are
            no owners split a matrix; None for one.
        padded: Whether padding is computed.

    Returns:
        The ratio, at least one.
    """

    def work(exchange: Exchange, among: int) -> np.ndarray:
        if padded:
            own = np.full(_owners(exchange), exchange.owned)
        else:
            real = exchange.owned_by() >= 0
            whole, last = real[:, :-1].sum(axis=1), _of_team(exchange, real[:, -1])
            own = whole + last / exchange.chips
        return work_of(exchange) * own / among

    among = inside or [1] * len(exchanges)
    load = _sum(exchanges, list(map(work, exchanges, among)))
    total = sum(work_of(e) * e.count * e.view.batch for e in exchanges)
    return float(load.max() / (total / math.prod(exchanges[0].sizes.values())))


def sent_in_teams(exchanges: Sequence[Exchange], model: CostModel) -> int:
    """Bytes that a device sends at most in its teams in a step.

    Args:
        exchanges: Exchanges on one mesh.
        model: Has the number of steps and the dtype.

    Returns:
        The number.
    """

    def sent(exchange: Exchange) -> np.ndarray:
        each, once = model.sent(exchange, exchange.chips)
        last = _of_team(exchange, exchange.owned_by()[:, -1] >= 0)
        return each * last + once * (last > 0)

    return round(_sum(exchanges, list(map(sent, exchanges))).max())


def _sum(exchanges: Sequence[Exchange], loads: Sequence[np.ndarray]) -> np.ndarray:
    """Loads of all exchanges, an axis for each mesh axis that any of them has."""
    sizes = exchanges[0].sizes
    axes = sorted({a for e in exchanges for a in e.owners})
    total = np.zeros([sizes[a] for a in axes])
    for exchange, load in zip(exchanges, loads, strict=True):
        order = [axes.index(a) for a in exchange.owners]
        by_owner = np.moveaxis(total, order, range(len(order)))
        shape = [sizes[a] for a in exchange.owners]
        own = load.reshape([*shape, *[1] * (total.ndim - len(order))])
        by_owner += own
    return total


def _of_team(exchange: Exchange, own: np.ndarray) -> np.ndarray:
    """The sum over the team of each owner."""
    shape = [exchange.sizes[a] for a in exchange.owners]
    order = [exchange.owners.index(a) for a in exchange.batch + exchange.sharing]
    ordered = own.reshape(shape).transpose(order)
    sums = ordered.reshape(-1, exchange.chips).sum(axis=1)
    each = np.repeat(sums, exchange.chips).reshape(ordered.shape)
    return each.transpose(np.argsort(order)).reshape(-1)


def _owners(exchange: Exchange) -> int:
    return int(np.prod([exchange.sizes[a] for a in exchange.owners]))
