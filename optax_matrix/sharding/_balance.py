"""Which owners get the matrices that are left over, so that all have equal work."""

from collections.abc import Sequence

import numpy as np

from optax_matrix.sharding._bundles import whole_matrix
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


def balanced_starts(exchanges: Sequence[Exchange]) -> list[int]:
    """Values of `Exchange.start` for which the busiest device has little work.

    The largest matrices come first; each group goes to the consecutive owners among
    whom the busiest has least, and of those to whom all have least.

    Args:
        exchanges: Exchanges on one mesh.

    Returns:
        A number of an owner for each.
    """
    starts = [0] * len(exchanges)
    axes = sorted({a for e in exchanges for a in e.owners})
    sizes = [exchanges[0].sizes[a] for a in axes] if exchanges else []
    load = np.zeros(sizes)
    costs = [work_of(e) for e in exchanges]
    for i in sorted(range(len(exchanges)), key=lambda i: -costs[i]):
        exchange = exchanges[i]
        order = [axes.index(a) for a in exchange.sharing]
        by_owner = np.moveaxis(load, order, range(len(order)))
        flat = by_owner.reshape(exchange.ways, -1)
        rest, ways = exchange.left_over, exchange.ways
        windows = (np.arange(ways)[:, None] + np.arange(rest)) % ways
        if rest:
            busy = flat.max(axis=1)[windows]
            starts[i] = int(np.lexsort((busy.sum(axis=1), busy.max(axis=1)))[0])
        more = np.full(ways, float(exchange.held // ways))
        more[windows[starts[i]]] += 1
        shape = [*by_owner.shape[: len(order)], *[1] * (load.ndim - len(order))]
        by_owner += costs[i] * more.reshape(shape)
    return starts
