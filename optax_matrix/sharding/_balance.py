"""Who computes the last round of matrices, of which too few are left for all owners.

Of K matrices on N owners, ``K % N`` make a last round, in which some devices work and
others wait. Two things are decided here, from shapes alone: how many consecutive
owners, a team, share each of those matrices (the argument `teams` of `owners`), and
which owners get them, so that the busiest device has as little work as possible over
all shapes.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from optax_matrix.matrices.view import MatrixView
from optax_matrix.sharding._ownership import Ownership

TEAMS = (1, 2, 4, 8)
_STEPS = 5  # The default of `newton_schulz`, and the width of its products in bytes.
_WIDTH = 2


def with_teams(ownerships: Sequence[Ownership], teams: int) -> list[Ownership]:
    """Sets every `Ownership.team_size` and `Ownership.offset`.

    Every last round goes to consecutive teams: to those whose busiest device has least
    work, and of equal ones to those that have least work together. Matrices with the
    most work come first. Partners have the same places.
    """
    found = [_in_teams(own, teams) for own in ownerships]
    total = Loads(found)
    time = [work_of(own.matrix) // own.team_size for own in found]
    order = sorted(in_units(found), key=lambda unit: -sum(time[i] for i in unit))
    for turn, unit in enumerate(order):
        own = found[unit[0]]
        if own.remainder:
            count = own.owners_per_shard // own.team_size
            extra = own.remainder % count
            offset = _window(total.of_teams(own), extra) if extra else 0
            # Each shape starts at another member of its teams, because state and other
            # blocks are not shared.
            offset += count * (turn % own.team_size)
            if offset:
                for i in unit:
                    found[i] = dataclasses.replace(found[i], offset=offset)
        for i in unit:
            total.add(found[i])
    return found


def in_units(ownerships: Sequence[Ownership]) -> list[list[int]]:
    """The numbers of ownerships, those of partners together."""
    units: list[list[int]] = []
    for i, own in enumerate(ownerships):
        if own.follows:
            units[-1].append(i)
        else:
            units.append([i])
    return units


def _in_teams(own: Ownership, teams: int) -> Ownership:
    """Teams of this size; of all owners of a shard that are fewer and divide it."""
    devices = own.owners_per_shard
    size = math.gcd(teams, devices)
    if own.remainder and size not in (teams, devices):
        raise ValueError(
            f"`teams` must divide the owners, got {teams} with {devices} owners along "
            f"{own.shard_axes}; pass teams={size}."
        )
    return dataclasses.replace(own, team_size=size if own.remainder else 1, offset=0)


class Loads:
    """What every device does in a step.

    Attributes:
        work: Operations of each device in one step of Newton-Schulz.
        sent: Bytes that each device sends to its teams in all steps.
    """

    def __init__(self, ownerships: Sequence[Ownership]):
        self._axes = sorted({x for own in ownerships for x in own.owner_axes})
        sizes = [ownerships[0].sizes[x] for x in self._axes] if ownerships else []
        # Integers, so that every host finds the same.
        self._all = np.zeros([2, *sizes], np.int64)
        self.work, self.sent = self._all

    def add(self, own: Ownership) -> None:
        """Adds the matrices of an ownership."""
        size, work = own.team_size, work_of(own.matrix)
        last = own.is_real[:, -1].reshape(-1, size).sum(axis=1).repeat(size)
        whole = own.is_real[:, :-1].sum(axis=1)
        each, once = _sent_in_team(own.matrix, size)
        total = self._by_owner(own)
        sizes = total.shape[: 1 + len(own.shard_axes)]
        sizes += (1,) * (total.ndim - len(sizes))
        new = [whole * work + last * (work // size), last * each + (last > 0) * once]
        total += np.reshape(new, sizes)

    def of_teams(self, own: Ownership) -> np.ndarray:
        """The work of the busiest device of each team."""
        teams = own.owners_per_shard // own.team_size
        return self._by_owner(own)[0].reshape(teams, -1).max(axis=1)

    def _by_owner(self, own: Ownership) -> np.ndarray:
        """A view of all loads in which the axes of the owners of a shard come first."""
        order = [1 + self._axes.index(x) for x in own.shard_axes]
        return np.moveaxis(self._all, order, range(1, 1 + len(order)))


def loads(ownerships: Sequence[Ownership]) -> Loads:
    """The loads of all matrices."""
    total = Loads(ownerships)
    for own in ownerships:
        total.add(own)
    return total


def work_of(matrix: MatrixView) -> int:
    """Operations of a step of Newton-Schulz on a matrix, with all its pieces."""
    return sum(p.count * operations(p.rows, p.cols) for p in matrix.pieces)


def operations(rows: int, cols: int) -> int:
    """Operations of a step: two products with the long side, one of the short.

    This is a step of Newton-Schulz; other methods grow as fast with both sides.
    """
    short, long = sorted((rows, cols))
    return 4 * short**2 * long + 2 * short**3


def _sent_in_team(matrix: MatrixView, size: int) -> tuple[int, int]:
    """Bytes that a device sends for each matrix of its team, and once if it has any.

    Of `size` devices each sends ``(size - 1) / size`` of three squares of the short
    side in each step: partial sums of the Gram matrix in float32, its rows, and those
    of the polynomial. Before the first step and after the last it sends as large a part
    of its own matrix.
    """
    sides = [(p.count, *sorted((p.rows, p.cols))) for p in matrix.pieces]
    square = sum(count * m**2 for count, m, _ in sides)
    each = _STEPS * square * (4 + 2 * _WIDTH)
    once = 2 * _WIDTH * sum(count * m * n for count, m, n in sides)
    return each * (size - 1) // size, once * (size - 1) // size


def _window(busy: np.ndarray, count: int) -> int:
    """The first of `count` consecutive teams, in a circle, that have little work."""
    circle = np.concatenate([busy, busy[: count - 1]])
    windows = np.lib.stride_tricks.sliding_window_view(circle, count)
    return int(np.lexsort((windows.sum(axis=1), windows.max(axis=1)))[0])
