"""Which owners get the matrices of the last rounds, so that all have equal work."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from optax_matrix.sharding._ownership import Ownership
from optax_matrix.sharding.teams._cost_model import Cost, CostModel, cost


class Loads:
    """What every device has to do in a step.

    Attributes:
        time: Time of each device, in operations of a step that it could do meanwhile.
        work: Operations of a step of each device.
        sent: Bytes that each device sends in its teams, in all steps.
    """

    def __init__(self, ownerships: Sequence[Ownership], model: CostModel):
        self._model = model
        self._axes = sorted({x for own in ownerships for x in own.owner_axes})
        sizes = [ownerships[0].sizes[x] for x in self._axes] if ownerships else []
        # Integers, so that every host finds the same.
        self._all = np.zeros([3, *sizes], np.int64)
        self.time, self.work, self.sent = self._all

    def add(self, own: Ownership) -> None:
        """Adds the matrices of an ownership."""
        each, size = _rounded(own, self._model), own.team_size
        last = own.is_real[:, -1].reshape(-1, size).sum(axis=1).repeat(size)
        whole = own.is_real[:, :-1].sum(axis=1)
        time = whole * each.work + last * each.time + (last > 0) * each.extra_time
        work = whole * each.work + last * (each.work // size)
        sent = last * each.sent + (last > 0) * each.extra_sent
        total = self._by_owner(own)
        sizes = total.shape[: 1 + len(own.shard_axes)]
        sizes += (1,) * (total.ndim - len(sizes))
        total += np.reshape([time, work, sent], sizes)

    def of_teams(self, own: Ownership) -> np.ndarray:
        """The time of the busiest device of each team."""
        teams = own.owners_per_shard // own.team_size
        return self._by_owner(own)[0].reshape(teams, -1).max(axis=1)

    def _by_owner(self, own: Ownership) -> np.ndarray:
        """A view of all loads in which the axes of the owners of a shard come first."""
        order = [1 + self._axes.index(x) for x in own.shard_axes]
        return np.moveaxis(self._all, order, range(1, 1 + len(order)))


def loads(ownerships: Sequence[Ownership], model: CostModel) -> Loads:
    """The loads of all matrices."""
    total = Loads(ownerships, model)
    for own in ownerships:
        total.add(own)
    return total


def balanced(
    ownerships: Sequence[Ownership], model: CostModel
) -> tuple[list[Ownership], Loads]:
    """Chooses every `Ownership.offset` so that the busiest device has little to do.

    The matrices that take most time come first. Each last round goes to consecutive
    teams among whom the busiest has least, and of those to whom all have least.
    """
    total, found = Loads(ownerships, model), list(ownerships)
    time = [_rounded(own, model).time for own in ownerships]
    order = sorted(range(len(found)), key=lambda i: -time[i])
    for turn, i in enumerate(order):
        own = found[i]
        if own.remainder:
            teams = own.owners_per_shard // own.team_size
            busy, extra = total.of_teams(own), own.remainder % teams
            offset = _window(busy, extra) if extra else 0
            # Shapes begin with different members of their teams, because state and
            # other blocks are not shared.
            offset += teams * (turn % own.team_size)
            if offset != own.offset:
                found[i] = dataclasses.replace(own, offset=offset)
        total.add(found[i])
    return found, total


def _rounded(own: Ownership, model: CostModel) -> Cost:
    return Cost(*map(round, cost(own.matrix, own.team_size, model)))


def _window(busy: np.ndarray, count: int) -> int:
    """The first of `count` consecutive teams, in a circle, that have little work."""
    circle = np.concatenate([busy, busy[: count - 1]])
    windows = np.lib.stride_tricks.sliding_window_view(circle, count)
    return int(np.lexsort((windows.sum(axis=1), windows.max(axis=1)))[0])
