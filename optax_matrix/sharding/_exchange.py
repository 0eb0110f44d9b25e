"""Moves the matrices of equal leaves from their shards to their owners and back.

Everything here runs inside a `shard_map`, on one device's part of each leaf. What has
to move depends on what an owner axis does to the leaves:

* it shards a batch axis: devices hold whole matrices already, and nothing moves;
* it splits the matrices: ``all_to_all`` swaps parts of many matrices for one whole one;
* it replicates them: each device takes its share of the matrices without communication,
  and ``all_gather`` distributes the results.

`Exchange` cuts leaves into the parts that move and joins what arrives; `_pools` moves
them.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from optax_matrix.sharding._ownership import Ownership


@dataclasses.dataclass(frozen=True)
class Exchange:
    """The exchange of the matrices of equal leaves.

    Why one ``all_to_all`` suffices. Among the devices that split a matrix, number them
    by their places on the split axes. Before, device i holds part i of all matrices, in
    the order of their owners: chunk j of its array is what owner j needs. After, owner
    j holds all parts of its own: chunk i came from device i. That is a transpose of a
    table of chunks, which is what ``all_to_all`` does, and it is its own inverse, so
    the way back has the same steps backwards.

    It holds only if chunk j is one block of the array, so matrices are brought into the
    order of `axes` first. In another order the collective would still run, and owners
    would get parts of each other's matrices: shapes do not show it. Replicated axes
    come first in that order: a replica takes one contiguous share of the matrices
    before the collective, so that it sends only what its own owners need, and the
    shares of all replicas, one after another, are the matrices again.

    Every chunk has the same size, so that owners with fewer matrices have padding.
    """

    ownership: Ownership

    @functools.cached_property
    def split_axes(self) -> tuple[str, ...]:
        """Owner axes that split matrices."""
        own = self.ownership
        used = {x for a in self._inner for x in own.spec[a]}
        return tuple(x for x in own.owner_axes if x in used)

    @functools.cached_property
    def replicated_axes(self) -> tuple[str, ...]:
        """Owner axes along which all devices hold the same."""
        return tuple(x for x in self.ownership.shard_axes if x not in self.split_axes)

    @functools.cached_property
    def axes(self) -> tuple[str, ...]:
        """The owner axes of a shard in the order in which matrices are exchanged.

        A replica takes its share before the collective, so that replicated axes are
        major: its share is then one block, and so is what it gathers from another.
        """
        return self.replicated_axes + self.split_axes

    @functools.cached_property
    def places(self) -> tuple[int, int]:
        """Number of replicas, and of devices that split a matrix."""
        own = self.ownership
        return own.devices(self.replicated_axes), own.devices(self.split_axes)

    @functools.cached_property
    def part(self) -> list[int]:
        """Shape of a device's part of one matrix."""
        return [self._local[a] for a in self._inner]

    @functools.cached_property
    def is_real(self) -> np.ndarray:
        """Which matrices of the share of each replica are no padding."""
        real = self.ownership.is_real.ravel()
        real = self._reordered(real, self.ownership.shard_axes, self.axes)
        return real.reshape(self.places[0], -1)

    @functools.cached_property
    def in_last_round(self) -> np.ndarray:
        """Which owners have a matrix of the last round, by replica and place.

        All are false if there is no last round, in which only some owners have one.
        """
        real = self.is_real.reshape(*self.places, -1)
        return real[..., -1] & bool(self.ownership.remainder)

    def dtype_sent(self, dtype: Any, wire_dtype: Any) -> Any:
        """The dtype in which matrices of some dtype travel."""
        dtype, wire = jnp.dtype(dtype), jnp.dtype(wire_dtype or dtype)
        return wire if wire.itemsize < dtype.itemsize and self.axes else dtype

    def chunks(
        self,
        leaves: Sequence[Array],
        wire_dtype: Any = None,
        unreduced: tuple[str, ...] = (),
    ) -> Array:
        """What each owner of this replica needs: ``(places, matrices, *part)``.

        They travel in `wire_dtype` where that is narrower than their own. Leaves that
        are `unreduced` along mesh axes are added in their own dtype; along replicated
        axes each owner gets only the sum of its own matrices.
        """
        own = self.ownership
        x = jnp.stack(list(leaves))
        x = jnp.transpose(x, self._batch_first)
        x = x.reshape(own.matrices_per_shard, *self.part)
        dtype = self.dtype_sent(x.dtype, wire_dtype)
        scatters = bool(unreduced) and {*self.replicated_axes} <= {*unreduced}
        kept = self.replicated_axes if scatters else ()
        if rest := tuple(a for a in unreduced if a not in kept):
            x = jax.lax.psum(x, rest)
        x = x if kept else x.astype(dtype)
        x = self._reordered(own.by_owner(x), own.shard_axes, self.axes)
        if kept:
            x = jax.lax.psum_scatter(x, kept, tiled=True).astype(dtype)
        elif self.replicated_axes:
            share = len(x) // self.places[0]
            start = jax.lax.axis_index(self.replicated_axes) * share
            x = jax.lax.dynamic_slice_in_dim(x, start, share)
        return x.reshape(self.places[1], own.matrices_per_owner, *self.part)

    def joined(self, chunks: Array, dtype: Any) -> Array:
        """This device's whole matrices ``(n, rows, cols)``, from all its chunks."""
        own = self.ownership
        x = chunks.astype(dtype)
        x = x.reshape(*self._splits, own.matrices_per_owner, *self.part)
        whole = (own.matrices_per_owner, own.view.rows, own.view.cols)
        return jnp.transpose(x, self._joined).reshape(whole)

    def cut(self, matrices: Array, wire_dtype: Any = None) -> Array:
        """Inverts `joined`: the chunks of this device's whole matrices."""
        own = self.ownership
        shape = [*self._splits, own.matrices_per_owner, *self.part]
        x = matrices.reshape([shape[i] for i in self._joined])
        x = jnp.transpose(x, _inverse(self._joined))
        x = x.reshape(self.places[1], own.matrices_per_owner, *self.part)
        return x.astype(self.dtype_sent(x.dtype, wire_dtype))

    def leaves(self, chunks: Array, dtype: Any) -> list[Array]:
        """This device's part of each leaf, from the chunks of all replicas' owners."""
        own = self.ownership
        x = chunks.reshape(-1, *self.part)
        x = self._reordered(x, self.axes, own.shard_axes)
        x = own.in_order(x).astype(dtype)
        shape = [own.leaves, *self._local]
        x = x.reshape([shape[i] for i in self._batch_first])
        return list(jnp.transpose(x, _inverse(self._batch_first)))

    def _reordered(self, x: Any, old: Sequence[str], new: Sequence[str]) -> Any:
        """The matrices of all owners, in the order of other axes."""
        if old == new:
            return x
        own = self.ownership
        sizes = [own.sizes[a] for a in old]
        blocks = x.reshape(*sizes, own.matrices_per_owner, *x.shape[1:])
        order = [*map(old.index, new), *range(len(old), blocks.ndim)]
        return blocks.transpose(order).reshape(x.shape)

    # The rest are static numbers and shapes.

    @functools.cached_property
    def _inner(self) -> list[int]:
        """Leaf axes within a matrix, in the leaf's order."""
        return sorted(self.ownership.matrix_axes)

    @functools.cached_property
    def _local(self) -> list[int]:
        """Shape of a device's part of a leaf."""
        own = self.ownership
        pairs = zip(own.view.shape, own.spec, strict=True)
        return [size // own.devices(axes) for size, axes in pairs]

    @functools.cached_property
    def _splits(self) -> list[int]:
        return [self.ownership.sizes[x] for x in self.split_axes]

    @functools.cached_property
    def _batch_first(self) -> list[int]:
        """Permutation of stacked leaves that brings their batch axes to the front."""
        return [0, *(1 + a for a in [*self.ownership.view.batch_axes, *self._inner])]

    @functools.cached_property
    def _joined(self) -> list[int]:
        """Permutation of ``(*splits, matrices, *part)`` that joins each side's parts.

        Afterwards the mesh axes that split a leaf axis stand before it, major first,
        and the sides are in the view's order, output before reduction.
        """
        matrices = len(self.split_axes)
        order = [matrices]
        for a in self.ownership.matrix_axes:
            order += map(self.split_axes.index, self.ownership.spec[a])
            order.append(matrices + 1 + self._inner.index(a))
        return order


def _inverse(order: Sequence[int]) -> list[int]:
    return sorted(range(len(order)), key=order.__getitem__)
