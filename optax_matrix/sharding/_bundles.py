"""Leaves that are exchanged together, and their stacks."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from optax_matrix.matrices.view import MatrixView
from optax_matrix.sharding._exchange import Exchange
from optax_matrix.sharding._ownership import Ownership
from optax_matrix.stacks.identities import FILLER, form_of, identities
from optax_matrix.stacks.layout import (
    Group,
    Member,
    default_batch,
    make_group,
)


@dataclasses.dataclass(frozen=True)
class Bundle:
    """Leaves that are exchanged together, and where their matrices are in stacks.

    Attributes:
        paths: The leaves.
        ownership: Who owns their matrices.
        exchange: How they move.
        slots: For each piece of a matrix the name of its stack, and where its sections
            are among those that the stack has of each matrix: first, last + 1.
    """

    paths: tuple[str, ...]
    ownership: Ownership
    exchange: Exchange
    slots: tuple[tuple[str, int, int], ...]

    @property
    def stacks(self) -> tuple[str, ...]:
        """The names of the stacks."""
        return tuple(dict.fromkeys(name for name, _, _ in self.slots))


def matrices_per_device(matrix: MatrixView, max_batch: int | None) -> int:
    """The number of whole matrices with which no stack of a device is too large."""
    shapes = shapes_of(matrix)
    limits = [
        (max_batch or default_batch(*shapes[indices[0]]))
        // sum([matrix.pieces[i].count for i in indices])
        for indices in _by_kind(shapes)
    ]
    return max(1, min(limits))


def make_bundle(
    paths: list[str],
    own: Ownership,
    dtype: Any,
    inside: list[tuple[str, ...]],
    kinds: Sequence[Any],
) -> tuple[Bundle, dict[str, Group]]:
    """The bundle of equal leaves, and its stacks.

    Args:
        paths: The leaves.
        own: Who owns their matrices.
        dtype: Their dtype.
        inside: For each axis of a leaf the mesh axes inside matrices.
        kinds: For each piece of a matrix a value that is the same for those that share
            a stack, which have one shape.
    """
    view, pieces = own.view, own.matrix.pieces
    slots: dict[int, tuple[str, int, int]] = {}
    groups: dict[str, Group] = {}
    for indices in _by_kind(kinds):
        blocks = [_identities(paths, own, i, pieces[i].count) for i in indices]
        ids = np.concatenate(blocks, axis=2).reshape(-1, 2)
        spec = view.spec_of_piece([x or None for x in inside])
        group = make_group(
            rows=pieces[indices[0]].rows,
            cols=pieces[indices[0]].cols,
            dtype=dtype,
            residual=view.residual,
            spec=(own.owner_axes, *spec[1:]),
            members=_members(paths, own, indices),
            ids=ids,
            forms=np.tile(form_of(view), (len(ids), 1)),
        )
        groups[group.name] = group
        start = 0
        for i in indices:
            end = start + pieces[i].count
            slots[i] = group.name, start, end
            start = end
    ordered = tuple([slots[i] for i in range(len(pieces))])
    return Bundle(tuple(paths), own, Exchange(own), ordered), groups


def shapes_of(matrix: MatrixView) -> list[tuple[int, int]]:
    """The shape of each piece of a matrix."""
    return [(piece.rows, piece.cols) for piece in matrix.pieces]


def _by_kind(kinds: Sequence[Any]) -> list[list[int]]:
    """The numbers of pieces that share a stack."""
    found: dict[Any, list[int]] = {}
    for i, kind in enumerate(kinds):
        found.setdefault(kind, []).append(i)
    return list(found.values())


def _identities(
    paths: list[str], own: Ownership, piece: int, sections: int
) -> np.ndarray:
    """Identities ``(*own.table.shape, sections, 2)`` of one piece of the matrices."""
    index = np.arange(own.view.batch * sections)
    known = np.stack([identities(path, piece, index) for path in paths])
    known = known.reshape(own.matrices, sections, 2)
    filler = np.broadcast_to(np.array(FILLER, np.uint32), (1, sections, 2))
    return np.concatenate([known, filler])[own.table]  # Index -1 is the filler.


def _members(paths: list[str], own: Ownership, pieces: list[int]) -> list[Member]:
    members, start = [], 0
    for i in pieces:
        count = own.view.batch * own.matrix.pieces[i].count
        for path in paths:
            members.append(Member(path, i, start, count))
            start += count
    return members
