"""Leaves that are exchanged together, and the stacks that they make."""

import dataclasses
from typing import Any

import numpy as np

from optax_matrix.matrices.view import MatrixView
from optax_matrix.sharding._exchange import Exchange
from optax_matrix.stacks.groups import (
    FILLER,
    Group,
    Member,
    default_batch,
    form_of,
    identities,
    make_group,
)


@dataclasses.dataclass(frozen=True)
class Bundle:
    """Leaves that are exchanged together, and the positions of their pieces in stacks.

    Attributes:
        paths: The leaves.
        exchange: How their matrices are exchanged.
        places: For each piece of a matrix the name of its stack, and where its
            sections are among those that the stack has of each matrix: first, last + 1.
    """

    paths: tuple[str, ...]
    exchange: Exchange
    places: tuple[tuple[str, int, int], ...]

    @property
    def matrix(self) -> MatrixView:
        """The view of one whole matrix, which may be split into sections."""
        return whole_matrix(self.exchange.view)


def whole_matrix(view: MatrixView) -> MatrixView:
    """The view of one matrix of a leaf, with the leaf's sections."""
    return dataclasses.replace(
        view,
        shape=(view.rows, view.cols),
        batch_axes=(),
        output_axes=(0,),
        reduction_axes=(1,),
    )


def _pieces_by_shape(view: MatrixView) -> dict[tuple[int, int], list[int]]:
    """The pieces of a matrix that share a stack, by shape."""
    shapes: dict[tuple[int, int], list[int]] = {}
    for i, piece in enumerate(whole_matrix(view).pieces):
        shapes.setdefault((piece.rows, piece.cols), []).append(i)
    return shapes


def matrices_per_device(view: MatrixView, max_batch: int | None) -> int:
    """Number of unsplit matrices for which no stack of a device exceeds its bound."""
    pieces = whole_matrix(view).pieces
    limits = [
        (max_batch or default_batch(*shape)) // sum(pieces[i].count for i in members)
        for shape, members in _pieces_by_shape(view).items()
    ]
    return max(1, min(limits))


def make_bundle(
    paths: list[str], exchange: Exchange, dtype: Any, stays: list[tuple[str, ...]]
) -> tuple[Bundle, dict[str, Group]]:
    """The bundle of equal leaves, and its stacks; `stays` are axes inside matrices."""
    view, table = exchange.view, exchange.owned_by()
    pieces = whole_matrix(view).pieces
    places: dict[int, tuple[str, int, int]] = {}
    groups: dict[str, Group] = {}
    for (rows, cols), indices in _pieces_by_shape(view).items():
        blocks = [_identities(paths, view, i, pieces[i].count, table) for i in indices]
        ids = np.concatenate(blocks, axis=2).reshape(-1, 2)
        spec = view.spec_of_piece([x or None for x in stays])
        group = make_group(
            rows=rows,
            cols=cols,
            dtype=dtype,
            residual=view.residual,
            spec=(exchange.owners, *spec[1:]),
            members=_members(paths, view, indices),
            ids=ids,
            forms=np.tile(form_of(view), (len(ids), 1)),
        )
        groups[group.name] = group
        start = 0
        for i in indices:
            end = start + pieces[i].count
            places[i] = group.name, start, end
            start = end
    ordered = tuple(places[i] for i in range(len(pieces)))
    return Bundle(tuple(paths), exchange, ordered), groups


def _identities(
    paths: list[str], view: MatrixView, piece: int, sections: int, table: np.ndarray
) -> np.ndarray:
    """Identities ``(*table.shape, sections, 2)`` of one piece of the matrices."""
    index = np.arange(view.batch * sections)
    known = np.stack([identities(path, piece, index) for path in paths])
    known = known.reshape(len(paths) * view.batch, sections, 2)
    filler = np.broadcast_to(np.array(FILLER, np.uint32), (1, sections, 2))
    return np.concatenate([known, filler])[table]  # Index -1 is the filler.


def _members(paths: list[str], view: MatrixView, pieces: list[int]) -> list[Member]:
    members, start = [], 0
    for i in pieces:
        for path in paths:
            members.append(Member(path, i, start, view.pieces[i].count))
            start += view.pieces[i].count
    return members
