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
        self.time, self.work, self.sent = np.zeros([3, *sizes], np.int64)

    def add(self, own: Ownership) -> None:
        """Adds the matrices of an ownership."""
        each, size = _rounded(own, self._model), own.team_size
        last = own.is_real[:, -1].reshape(-1, size).sum(axis=1).repeat(size)
        whole = own.is_real[:, :-1].sum(axis=1)
        for total, alone, in_team, extra in (
            (self.time, each.work, each.time, each.extra_time),
            (self.work, each.work, each.work // size, 0),
            (self.sent, 0, each.sent, each.extra_sent),
        ):
            view = self._along(total, own)
            more = whole * alone + last * in_team + (last > 0) * extra
            shape = [own.sizes[x] for x in own.shard_axes]
            view += more.reshape(shape + [1] * (view.ndim - len(shape)))

    def of_teams(self, own: Ownership) -> np.ndarray:
        """The time of the busiest device of each team."""
        teams = own.owners_per_shard // own.team_size
        return self._along(self.time, own).reshape(teams, -1).max(axis=1)

    def _along(self, total: np.ndarray, own: Ownership) -> np.ndarray:
        """A view whose first axes are those of the owners of a shard."""
        order = [self._axes.index(x) for x in own.shard_axes]
        return np.moveaxis(total, order, range(len(order)))


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
