"""Leaves of equal matrices and different numbers of layers, exchanged as one leaf.

Two stages of a model, or scanned layers and one that is not, have leaves of different
shapes. If no mesh axis shards their axes of layers, all their matrices, one leaf after
another, are one leaf with one axis of layers in front. Where mesh axes shard layers,
the owners of the matrices depend on the leaf, and it stays alone.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from optax_matrix.matrices.statistics import Sides
from optax_matrix.matrices.view import MatrixView
from optax_matrix.sharding._ownership import Ownership
from optax_matrix.sharding._param_specs import Spec
from optax_matrix.stacks.identities import FILLER, form_of, identities
from optax_matrix.stacks.layout import Member


class Leaves(NamedTuple):
    """Leaves of equal matrices.

    Attributes:
        paths: Their paths.
        views: The view of each.
        dtype: Their dtype.
        spec: Mesh axes of each axis of one of them, or of all joined.
    """

    paths: tuple[str, ...]
    views: tuple[MatrixView, ...]
    dtype: Any
    spec: Spec

    def manifest(self, own: Ownership, piece: int, sections: int) -> np.ndarray:
        """Rows ``(*own.table.shape, sections, 4)`` of one piece of the matrices."""
        known = []
        for path, view in zip(self.paths, self.views, strict=True):
            ids = identities(path, piece, np.arange(view.batch * sections))
            known.append(np.hstack([ids, np.tile(form_of(view), (len(ids), 1))]))
        filler = np.array([*FILLER, *form_of(self.views[0])], np.uint32)
        known.append(np.broadcast_to(filler, (sections, 4)))  # The filler has index -1.
        return np.concatenate(known).reshape(-1, sections, 4)[own.table]

    def members(self, own: Ownership, pieces: Sequence[int]) -> list[Member]:
        """What a stack of some pieces consists of."""
        members, start = [], 0
        for i in pieces:
            for path, view in zip(self.paths, self.views, strict=True):
                count = view.batch * own.matrix.pieces[i].count
                members.append(Member(path, i, start, count))
                start += count
        return members


def with_layers(view: MatrixView, spec: Spec, layers: int) -> tuple[MatrixView, Spec]:
    """A leaf with so many layers in front of the matrix axes of another, and its spec.

    The leaf itself if mesh axes shard its layers.
    """
    if any(spec[a] for a in view.batch_axes):
        return view, spec
    inner = _inner(view)
    place = lambda axes: tuple([1 + inner.index(a) for a in axes])
    found = dataclasses.replace(
        view,
        shape=(layers, *[view.shape[a] for a in inner]),
        batch_axes=(0,),
        output_axes=place(view.output_axes),
        reduction_axes=place(view.reduction_axes),
        layer_axes=None,
    )
    return found, ((), *[spec[a] for a in inner])


def as_equal(views: Sequence[MatrixView], spec: Spec) -> tuple[MatrixView, Spec, int]:
    """Leaves of equal matrices as equal leaves: one of them, its spec, their number.

    Different leaves are one. `spec` is that of the first leaf.
    """
    if len(set(views)) == 1:
        return views[0], spec, len(views)
    return *with_layers(views[0], spec, sum(view.batch for view in views)), 1


def joined(
    leaves: Sequence[Array], views: Sequence[MatrixView], sides: Sides = None
) -> Array:
    """A device's parts of leaves, or of statistics of them, as its part of one leaf."""
    rows = []
    for x, view in zip(leaves, views, strict=True):
        if sides is None:  # Statistics have their layers in front.
            x = jnp.transpose(x, view.batch_axes + _inner(view))
        rows.append(x.reshape(view.batch, *x.shape[len(view.batch_axes) :]))
    return jnp.concatenate(rows)


def apart(x: Array, views: Sequence[MatrixView]) -> list[Array]:
    """Inverts `joined`."""
    leaves, start = [], 0
    for view in views:
        order = view.batch_axes + _inner(view)
        rows = x[start : start + view.batch]
        rows = rows.reshape(*[view.shape[a] for a in view.batch_axes], *x.shape[1:])
        leaves.append(jnp.transpose(rows, [order.index(a) for a in range(len(order))]))
        start += view.batch
    return leaves


def _inner(view: MatrixView) -> tuple[int, ...]:
    """The axes of a matrix, in the leaf's order."""
    return tuple(sorted(view.output_axes + view.reduction_axes))
