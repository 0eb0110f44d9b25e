"""Leaves that are exchanged together, and their stacks."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax import dtypes

from optax_matrix.matrices.pairs import Pairs
from optax_matrix.matrices.view import MatrixView
from optax_matrix.sharding._balance import in_units, with_teams
from optax_matrix.sharding._checks import check_no_teams, check_padding
from optax_matrix.sharding._exchange import Exchange
from optax_matrix.sharding._ownership import (
    Ownership,
    check_same_owners,
    whole_matrix,
)
from optax_matrix.sharding._param_specs import Spec
from optax_matrix.stacks.identities import FILLER, form_of, identities
from optax_matrix.stacks.layout import (
    Group,
    Member,
    chunks,
    default_batch,
    make_group,
    units_of,
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


class _Leaves(NamedTuple):
    """Equal leaves: their paths, dtype and spec."""

    paths: list[str]
    dtype: Any
    spec: Spec


class Bundled(NamedTuple):
    """All leaves in bundles.

    Attributes:
        bundles: The bundles.
        groups: Their stacks by name.
        partners: From the stacks of the first of each pair to those of their partners.
        inside: Mesh axes that split matrices and are not owner axes.
    """

    bundles: tuple[Bundle, ...]
    groups: dict[str, Group]
    partners: dict[str, str]
    inside: tuple[str, ...]


def bundled(
    leaves: Mapping[str, Any],
    views: Mapping[str, MatrixView],
    specs: Mapping[str, Spec],
    owner_axes: tuple[str, ...],
    mesh: Any,
    pairs: Pairs,
    max_batch: int | None,
    pad_to: int | None,
    teams: int,
) -> Bundled:
    """Groups matrix leaves of equal view, dtype and spec, and gives them to owners.

    Partners have one owner, and the same places in their stacks.
    """
    inside = _inside(views, specs, owner_axes)
    check_no_teams(teams, inside)
    sizes = dict(mesh.shape) if views else {}
    pools: dict[tuple, list[tuple[str, ...]]] = {}
    for unit in units_of(views, pairs):
        types = [dtypes.canonicalize_dtype(leaves[path].dtype) for path in unit]
        kinds = [(views[p], t, specs[p]) for p, t in zip(unit, types, strict=True)]
        pools.setdefault(tuple(kinds), []).append(unit)
    chosen: list[_Leaves] = []
    ownerships: list[Ownership] = []
    for kinds, units in pools.items():
        owned = [
            _ownership(view, without(spec, inside), owner_axes, sizes, pad_to)
            for view, _, spec in kinds
        ]
        limit = min([_bound(own, units[0], max_batch) for own in owned])
        batch = kinds[0][0].batch
        for chunk in chunks(units, limit, size=lambda _, batch=batch: batch):
            columns = zip(owned, kinds, zip(*chunk, strict=True), strict=True)
            for k, (own, (_, dtype, spec), paths) in enumerate(columns):
                own = dataclasses.replace(own, leaves=len(paths), follows=k > 0)
                ownerships.append(own)
                chosen.append(_Leaves(list(paths), dtype, spec))
    return _of_all(with_teams(ownerships, teams), chosen, inside)


def _of_all(
    ownerships: Sequence[Ownership], chosen: Sequence[_Leaves], inside: tuple[str, ...]
) -> Bundled:
    bundles: list[Bundle] = []
    groups: dict[str, Group] = {}
    partners: dict[str, str] = {}
    for unit in in_units(ownerships):
        each = [(ownerships[i], chosen[i]) for i in unit]
        # Pieces of partners share a stack if they do for both.
        kinds = list(zip(*(shapes_of(own.matrix) for own, _ in each), strict=True))
        made: list[dict[str, Group]] = []
        for own, (paths, dtype, spec) in each:
            own_inside = [tuple([x for x in entry if x in inside]) for entry in spec]
            bundle, stacks = make_bundle(paths, own, dtype, own_inside, kinds)
            bundles.append(bundle)
            made.append(stacks)
            groups |= stacks
        if len(made) > 1:
            check_same_owners([(own, found.paths[0]) for own, found in each])
            partners |= dict(zip(*made, strict=True))
    return Bundled(tuple(bundles), groups, partners, inside)


def _ownership(
    view: MatrixView,
    spec: Spec,
    owner_axes: tuple[str, ...],
    sizes: Mapping[str, int],
    pad_to: int | None,
) -> Ownership:
    """The ownership of one leaf."""
    batch = [x for a in view.batch_axes for x in spec[a] if x not in owner_axes]
    return Ownership(view, spec, owner_axes + tuple(batch), sizes, 1, pad_to)


def _bound(own: Ownership, paths: Sequence[str], max_batch: int | None) -> int:
    """The largest number of matrices of such leaves that are exchanged together."""
    devices = math.prod([own.sizes[x] for x in own.owner_axes])
    batch = tuple([x for a in own.view.batch_axes for x in own.spec[a]])
    one = whole_matrix(own.view)
    if own.pad_to is not None:
        check_padding(own.pad_to, paths, own.view, own.owner_axes, batch, devices)
    # With `pad_to`, the bounds of stacks must not depend on the mesh, either.
    limit = matrices_per_device(one, max_batch) * (own.pad_to or devices)
    return 1 if own.pad_to is not None and batch else limit


def _inside(
    views: Mapping[str, MatrixView], specs: Mapping[str, Spec], owners: tuple[str, ...]
) -> tuple[str, ...]:
    """Mesh axes that split a matrix and are not owner axes."""
    splitting = [
        x
        for path, view in views.items()
        for a in view.output_axes + view.reduction_axes
        for x in specs[path][a]
        if x not in owners
    ]
    return tuple(dict.fromkeys(splitting))


def without(spec: Spec, axes: Sequence[str]) -> Spec:
    """A spec without some of the mesh axes."""
    return tuple([tuple([x for x in e if x not in axes]) for e in spec])


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
