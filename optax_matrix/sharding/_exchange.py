"""Moves the matrices of equal leaves from their shards to their owners and back.

Each matrix is split along the mesh axes that its spec names. The owners are the devices
along the owner axes. One ``all_to_all`` over the axes that split matrices brings every
whole matrix to one owner. All of this runs inside `shard_map`, on one device's part.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from optax_matrix.matrices.view import MatrixView


@dataclasses.dataclass(frozen=True)
class Exchange:
    """The exchange of the matrices of `count` leaves of one view, dtype and spec.

    A mesh axis shards a batch axis of the leaves, or it splits their matrices, or their
    spec does not name it. In the last case all devices along it hold the same: each
    takes its share of the matrices, and ``all_gather`` distributes the results.

    Attributes:
        view: The view of a leaf.
        spec: Mesh axes of each leaf axis.
        owners: Mesh axes of the owners, major first.
        sizes: Size of each mesh axis.
        count: Number of leaves.
        pad_to: The number of matrices, padding included, is a multiple of this number
            instead of the number of owners; None for the latter.
        chips: Number of consecutive owners in a team that shares the work on the last
            round, in which there is not one matrix for every owner.
        start: The place of the first matrix of the last round; the others have the
            next places. One place is with each team, then another with each, and so
            on. Zero with `pad_to`.
    """

    view: MatrixView
    spec: tuple[tuple[str, ...], ...]
    owners: tuple[str, ...]
    sizes: Mapping[str, int]
    count: int
    pad_to: int | None = None
    chips: int = 1
    start: int = 0

    @functools.cached_property
    def batch(self) -> tuple[str, ...]:
        """Mesh axes that shard a batch axis of the leaves."""
        return tuple(x for a in self.view.batch_axes for x in self.spec[a])

    @functools.cached_property
    def cut(self) -> tuple[str, ...]:
        """Owner axes that split matrices."""
        used = {x for a in self._sides for x in self.spec[a]}
        return tuple(x for x in self.owners if x in used)

    @functools.cached_property
    def spare(self) -> tuple[str, ...]:
        """Owner axes along which all devices hold the same."""
        return tuple(x for x in self.owners if x not in self.batch + self.cut)

    @property
    def held(self) -> int:
        """Number of matrices of which a device holds a part."""
        return self.count * math.prod(self._local[a] for a in self.view.batch_axes)

    @property
    def owned(self) -> int:
        """Number of matrices that a device owns, padding included."""
        if self.pad_to is None:
            return -(-self.held // self.ways)
        matrices = self.count * self.view.batch
        padded = -(-matrices // self.pad_to) * self.pad_to
        return padded // (self.ways * self._ways(self.batch))

    @property
    def ways(self) -> int:
        """Number of owners that share the matrices of a shard."""
        return self._ways(self.sharing)

    @property
    def left_over(self) -> int:
        """Number of matrices of a shard in the last round, if it is not complete."""
        return 0 if self.pad_to is not None else self.held % self.ways

    @property
    def sent(self) -> int:
        """Numbers that a device sends to others on the way to the owners, or back."""
        share = self._travelling // self._ways(self.spare)
        exchanged = share - share // self._ways(self.cut)
        gathered = self._kept * (self._ways(self.spare) - 1)
        return (2 * exchanged + gathered) * math.prod(self._part) // 2

    def to_owners(self, leaves: Sequence[Array], wire_dtype: Any = None) -> Array:
        """Sends this device's parts of leaves to the owners of the matrices.

        Args:
            leaves: This device's part of each leaf.
            wire_dtype: Dtype to travel in where it is narrower; None for their own.

        Returns:
            The whole matrices that this device owns, ``(owned, rows, cols)``.
        """
        x = jnp.stack(list(leaves))
        x = jnp.transpose(x, self._batch_first).reshape(self.held, *self._part)
        dtype, x = x.dtype, self._for_wire(x, wire_dtype)
        x = self._by_owner(x)
        x = self._reordered(x, self.sharing, self.spare + self.cut)
        if self.spare:
            share = self._travelling // self._ways(self.spare)
            at = jax.lax.axis_index(self.spare) * share
            x = jax.lax.dynamic_slice_in_dim(x, at, share)
        x = self._all_to_all(x).astype(dtype)
        x = x.reshape(*self._cut_sizes, self.owned, *self._part)
        whole = (self.owned, self.view.rows, self.view.cols)
        return jnp.transpose(x, self._whole_order).reshape(whole)

    def from_owners(self, matrices: Array, wire_dtype: Any = None) -> list[Array]:
        """Sends whole matrices back; returns this device's part of each leaf."""
        shape = [*self._cut_sizes, self.owned, *self._part]
        x = matrices.reshape([shape[i] for i in self._whole_order])
        x = jnp.transpose(x, _inverse(self._whole_order))
        dtype, x = x.dtype, self._for_wire(x.reshape(-1, *self._part), wire_dtype)
        x = self._gathered(self._all_to_all(x))
        x = self._reordered(x, self.spare + self.cut, self.sharing)
        x = self._in_order(x).astype(dtype)
        shape = [self.count, *self._local]
        x = x.reshape([shape[i] for i in self._batch_first])
        return list(jnp.transpose(x, _inverse(self._batch_first)))

    def owned_by(self) -> np.ndarray:
        """The numbers of the matrices of each owner: ``(devices, owned)``.

        Matrix i of leaf k has the number ``k * view.batch + i``; -1 is padding.
        """
        shards = [self._by_owner(n + 1) - 1 for n in self._numbers_by_shard()]
        table = np.asarray(shards, np.int64)
        axes = self.batch + self.sharing
        table = table.reshape([*(self.sizes[x] for x in axes), self.owned])
        order = [axes.index(x) for x in self.owners]
        return table.transpose([*order, len(order)]).reshape(-1, self.owned)

    @property
    def sharing(self) -> tuple[str, ...]:
        """Owner axes whose devices share the matrices of a shard, major first.

        Owners in this order have consecutive matrices, on whatever mesh.
        """
        return tuple(x for x in self.owners if x not in self.batch)

    def _by_owner(self, x: Any) -> Any:
        """The matrices of a shard with zeros for padding, those of an owner together.

        Every owner has as many as there are for all; what is left over goes to the
        places from `start` on.
        """
        xp = np if isinstance(x, np.ndarray) else jnp
        zeros = lambda count: [(0, count)] + [(0, 0)] * (x.ndim - 1)
        rest = self.left_over
        if not rest:
            return xp.pad(x, zeros(self._travelling - self.held))
        even = self.held - rest
        last = xp.roll(xp.pad(x[even:], zeros(self.ways - rest)), self.start, axis=0)
        last = last.reshape(self.chips, -1, *x.shape[1:]).swapaxes(0, 1)
        last = last.reshape(self.ways, *x.shape[1:])
        rounds = x[:even].reshape(self.ways, self.owned - 1, *x.shape[1:])
        both = xp.concatenate([rounds, last[:, None]], axis=1)
        return both.reshape(self._travelling, *x.shape[1:])

    def _in_order(self, x: Array) -> Array:
        """Inverts `_by_owner`."""
        rest = self.left_over
        if not rest:
            return x[: self.held]
        both = x.reshape(self.ways, self.owned, *x.shape[1:])
        rounds = both[:, :-1].reshape(self.held - rest, *x.shape[1:])
        last = both[:, -1].reshape(-1, self.chips, *x.shape[1:]).swapaxes(0, 1)
        last = last.reshape(self.ways, *x.shape[1:])
        last = jnp.roll(last, -self.start, axis=0)[:rest]
        return jnp.concatenate([rounds, last])

    @functools.cached_property
    def _is_real(self) -> np.ndarray:
        """Which matrices of the shares along `spare` are no padding."""
        numbers = self._by_owner(np.arange(self.held) + 1)
        numbers = self._reordered(numbers, self.sharing, self.spare + self.cut)
        return numbers.reshape(self._ways(self.spare), -1) > 0

    @property
    def _kept(self) -> int:
        """Number of matrices of a share that are distributed."""
        return int(self._is_real.sum(axis=1).max())

    def _gathered(self, x: Array) -> Array:
        """The shares of all devices along `spare`; padding has anything."""
        if not self.spare:
            return x
        gather = functools.partial(jax.lax.all_gather, axis_name=self.spare, tiled=True)
        if self._kept == len(x):
            return gather(x)
        order = np.argsort(~self._is_real, axis=1, kind="stable")  # Padding last.
        own = jnp.asarray(order)[jax.lax.axis_index(self.spare), : self._kept]
        places = np.minimum(np.argsort(order, axis=1), self._kept - 1)
        places += self._kept * np.arange(len(order))[:, None]
        return gather(x[own])[places.ravel()]

    def _reordered(self, x: Any, old: Sequence[str], new: Sequence[str]) -> Any:
        """The matrices in the order of other axes, each block of a device whole."""
        if tuple(old) == tuple(new):
            return x
        blocks = x.reshape(*(self.sizes[a] for a in old), self.owned, *x.shape[1:])
        order = [list(old).index(a) for a in new]
        order += range(len(old), blocks.ndim)
        return blocks.transpose(order).reshape(x.shape)

    def _numbers_by_shard(self) -> list[np.ndarray]:
        view = self.view
        shape = [view.shape[a] for a in view.batch_axes]
        numbers = np.arange(self.count * view.batch).reshape(self.count, *shape)
        blocks = [
            [
                slice(i * self._local[a], (i + 1) * self._local[a])
                for i in range(self._ways(self.spec[a]))
            ]
            for a in view.batch_axes
        ]
        return [numbers[(slice(None), *b)].ravel() for b in itertools.product(*blocks)]

    @property
    def _sides(self) -> tuple[int, ...]:
        return self.view.output_axes + self.view.reduction_axes

    @functools.cached_property
    def _local(self) -> tuple[int, ...]:
        """Shape of a device's part of a leaf."""
        pairs = zip(self.view.shape, self.spec, strict=True)
        return tuple(size // self._ways(axes) for size, axes in pairs)

    @property
    def _inner(self) -> list[int]:
        """Leaf axes within a matrix, in the leaf's order."""
        return sorted(self._sides)

    @property
    def _part(self) -> tuple[int, ...]:
        """Shape of a device's part of one matrix."""
        return tuple(self._local[a] for a in self._inner)

    @property
    def _batch_first(self) -> tuple[int, ...]:
        return (
            0,
            *(1 + a for a in self.view.batch_axes),
            *(1 + a for a in self._inner),
        )

    @property
    def _cut_sizes(self) -> list[int]:
        return [self.sizes[x] for x in self.cut]

    @property
    def _travelling(self) -> int:
        return self.owned * self.ways

    @functools.cached_property
    def _whole_order(self) -> tuple[int, ...]:
        """Permutation of ``(*cut, owned, *part)`` that joins the parts of each side."""
        place = len(self.cut)
        order = [place]
        for a in self._sides:
            order += [self.cut.index(x) for x in self.spec[a]]
            order.append(place + 1 + self._inner.index(a))
        return tuple(order)

    def _ways(self, axes: Sequence[str]) -> int:
        return math.prod(self.sizes[x] for x in axes)

    def _for_wire(self, x: Array, dtype: Any) -> Array:
        narrower = dtype is not None and jnp.dtype(dtype).itemsize < x.dtype.itemsize
        return x.astype(dtype) if narrower and (self.cut or self.spare) else x

    def _all_to_all(self, x: Array) -> Array:
        if not self.cut:
            return x
        return jax.lax.all_to_all(x, self.cut, 0, 0, tiled=True)


def _inverse(order: Sequence[int]) -> tuple[int, ...]:
    return tuple(order.index(i) for i in range(len(order)))
