"""Which device owns which matrix: plain numbers, the same on every host."""

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from optax_matrix.matrices.statistics import shape_of
from optax_matrix.matrices.view import MatrixView, Side


@dataclasses.dataclass(frozen=True)
class Ownership:
    """The owners of the matrices of equal leaves.

    Mesh axes that shard a batch axis of the leaves (layers, experts) divide the
    matrices into shards. The owners of a shard are the devices along the other owner
    axes. Each owns equally many matrices of its shard, with consecutive numbers. The
    remaining matrices are the last round, in which an owner has one matrix or none.

    Attributes:
        view: The view of a leaf.
        spec: Mesh axes of each leaf axis.
        owner_axes: Mesh axes of the owners, major first.
        sizes: Size of each mesh axis.
        leaves: Number of leaves.
        pad_to: The number of matrices, padding included, is a multiple of this number
            instead of the number of owners; None for the latter. There is no last
            round then, so that the order of matrices is the same on every mesh.
        team_size: Number of consecutive owners that share the last round's work.
        offset: The place of the last round's first matrix; the others have the next
            places. Place p is in team p modulo the number of teams, so that each team
            gets a matrix before any gets two.
        follows: Whether its matrices are the partners of those of the ownership before
            it, and have their owners.
    """

    view: MatrixView
    spec: tuple[tuple[str, ...], ...]
    owner_axes: tuple[str, ...]
    sizes: Mapping[str, int]
    leaves: int
    pad_to: int | None = None
    team_size: int = 1
    offset: int = 0
    follows: bool = False

    @functools.cached_property
    def matrix(self) -> MatrixView:
        """The view of one whole matrix."""
        return whole_matrix(self.view)

    @functools.cached_property
    def sides(self) -> tuple[int, int]:
        """The sides of a matrix, the shorter one first."""
        short, long = sorted((self.view.rows, self.view.cols))
        return short, long

    @functools.cached_property
    def matrices(self) -> int:
        """Number of matrices."""
        return self.leaves * self.view.batch

    @functools.cached_property
    def matrix_axes(self) -> tuple[int, ...]:
        """Leaf axes that are part of a matrix."""
        return self.view.output_axes + self.view.reduction_axes

    @functools.cached_property
    def batch_mesh_axes(self) -> tuple[str, ...]:
        """Mesh axes that shard a batch axis of the leaves."""
        return tuple(x for a in self.view.batch_axes for x in self.spec[a])

    @functools.cached_property
    def shard_axes(self) -> tuple[str, ...]:
        """Owner axes along which the owners of one shard lie, major first."""
        batch = self.batch_mesh_axes
        return tuple([x for x in self.owner_axes if x not in batch])

    @functools.cached_property
    def owners_per_shard(self) -> int:
        """Number of owners of the matrices of a shard."""
        return self.devices(self.shard_axes)

    @functools.cached_property
    def matrices_per_shard(self) -> int:
        """Number of matrices of a shard."""
        return self.matrices // self.devices(self.batch_mesh_axes)

    @functools.cached_property
    def matrices_per_owner(self) -> int:
        """Number of matrices that a device owns, padding included."""
        if self.pad_to is None:
            return -(-self.matrices_per_shard // self.owners_per_shard)
        padded = -(-self.matrices // self.pad_to) * self.pad_to
        return padded // self.devices(self.batch_mesh_axes + self.shard_axes)

    @functools.cached_property
    def remainder(self) -> int:
        """Number of matrices of a shard in its last round, if that is incomplete."""
        return 0 if self.pad_to else self.matrices_per_shard % self.owners_per_shard

    @functools.cached_property
    def is_real(self) -> np.ndarray:
        """Which matrices of each owner of a shard are no padding."""
        real = self.by_owner(np.ones(self.matrices_per_shard, bool))
        return real.reshape(self.owners_per_shard, -1)

    @functools.cached_property
    def table(self) -> np.ndarray:
        """The numbers of the matrices of each owner: ``(owners, matrices_per_owner)``.

        Matrix i of leaf k has the number ``k * view.batch + i``; -1 is padding.
        """
        shape = [self.leaves]
        for a in self.view.batch_axes:
            shards = self.devices(self.spec[a])
            shape += [shards, self.view.shape[a] // shards]
        numbers = np.arange(self.matrices).reshape(shape)
        shards_last = *range(0, len(shape), 2), *range(1, len(shape), 2)
        numbers = numbers.transpose(shards_last).reshape(self.matrices_per_shard, -1)
        axes = self.shard_axes + self.batch_mesh_axes
        owned = self.by_owner(numbers + 1) - 1
        owned = owned.reshape(self.owners_per_shard, self.matrices_per_owner, -1)
        owned = owned.swapaxes(1, 2).reshape(*(self.sizes[x] for x in axes), -1)
        order = [axes.index(x) for x in self.owner_axes]
        return owned.transpose(*order, -1).reshape(-1, self.matrices_per_owner)

    @functools.cached_property
    def owners(self) -> np.ndarray:
        """The owner of each matrix, a row of `table`."""
        found = np.empty(self.matrices, int)
        rows = np.broadcast_to(np.arange(len(self.table))[:, None], self.table.shape)
        found[self.table[self.table >= 0]] = rows[self.table >= 0]
        return found

    def by_owner(self, x: Any) -> Any:
        """The matrices of a shard, padded with zeros, those of an owner together."""
        xp = np if isinstance(x, np.ndarray) else jnp
        owners, rest = self.owners_per_shard, x.shape[1:]
        pad = lambda x, size: xp.pad(x, [(0, size - len(x))] + [(0, 0)] * len(rest))
        if not self.remainder:
            return pad(x, owners * self.matrices_per_owner)
        even = len(x) - self.remainder
        # From places to owners: place p is the (p // teams)-th owner of its team.
        last = xp.roll(pad(x[even:], owners), self.offset, axis=0)
        last = last.reshape(self.team_size, -1, *rest).swapaxes(0, 1)
        last = last.reshape(owners, 1, *rest)
        rounds = x[:even].reshape(owners, self.matrices_per_owner - 1, *rest)
        return xp.concatenate([rounds, last], axis=1).reshape(-1, *rest)

    def in_order(self, x: Any) -> Any:
        """Inverts `by_owner`; drops padding."""
        if not self.remainder:
            return x[: self.matrices_per_shard]
        rest = x.shape[1:]
        both = x.reshape(self.owners_per_shard, -1, *rest)
        rounds = both[:, :-1].reshape(-1, *rest)
        last = both[:, -1].reshape(-1, self.team_size, *rest).swapaxes(0, 1)
        last = jnp.roll(last.reshape(-1, *rest), -self.offset, axis=0)
        return jnp.concatenate([rounds, last[: self.remainder]])

    def of_statistic(self, sides: tuple[Side, ...]) -> "Ownership":
        """The ownership of statistics of these leaves, seen as matrices of two axes.

        A side is sharded as that of the leaf is, as far as one axis of an array can be.
        """
        view, front = self.view, len(self.view.batch_axes)
        of_side = {"out": view.output_axes, "in": view.reduction_axes}
        axes = [of_side[side] for side in sides]
        first = lambda one: next((a for a in one if view.shape[a] > 1), one[0])
        spec = [self.spec[a] for a in view.batch_axes]
        for one in axes:  # The second of two equal sides is whole.
            known = self.spec[first(one)]
            spec.append(() if known in spec else known)
        ones = 2 - len(sides)
        seen = dataclasses.replace(
            view,
            shape=(*shape_of(view, sides), *[1] * ones),
            batch_axes=tuple(range(front)),
            output_axes=(front,),
            reduction_axes=(front + 1,),
            output_sections=1,
            reduction_sections=1,
            layer_axes=None,
        )
        return dataclasses.replace(self, view=seen, spec=(*spec, *[()] * ones))

    def devices(self, axes: Iterable[str]) -> int:
        """Number of devices along mesh axes."""
        return math.prod(map(self.sizes.__getitem__, axes))


@functools.cache
def whole_matrix(view: MatrixView) -> MatrixView:
    """The view of one matrix of a leaf, with the leaf's sections."""
    return dataclasses.replace(
        view,
        shape=(view.rows, view.cols),
        batch_axes=(),
        output_axes=(0,),
        reduction_axes=(1,),
        layer_axes=None,
    )


def check_same_owners(partners: Sequence[tuple[Ownership, str]]) -> None:
    """Raises unless matrix i of two ownerships has the same place for every i."""
    one, other = (own for own, _ in partners)
    same = one.owner_axes == other.owner_axes and one.table.shape == other.table.shape
    if same and (one.table == other.table).all():
        return
    shown = [f"{path!r} on {own.batch_mesh_axes}" for own, path in partners]
    raise ValueError(
        "`pairs` must join leaves whose layers, heads and experts are sharded alike, "
        f"so that partners have one owner, got {' and '.join(shown)}; give both one "
        "spec on these axes."
    )
