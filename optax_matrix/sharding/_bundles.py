"""Leaves that are exchanged together, and their stacks."""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax import dtypes
from jaxtyping import Array

from optax_matrix.matrices.pairs import Pairs
from optax_matrix.matrices.statistics import Sides
from optax_matrix.matrices.view import MatrixView
from optax_matrix.sharding._balance import in_units, with_teams
from optax_matrix.sharding._checks import check_no_teams, check_padding
from optax_matrix.sharding._depths import Leaves, apart, as_equal, joined, with_layers
from optax_matrix.sharding._exchange import Exchange
from optax_matrix.sharding._ownership import (
    Ownership,
    check_same_owners,
    whole_matrix,
)
from optax_matrix.sharding._param_specs import Spec, axes_inside
from optax_matrix.stacks.layout import (
    Group,
    chunks,
    default_batch,
    make_group,
    units_of,
)

MOST_STACKS = 16
"""The most stacks of equal matrices, each with collectives and kernels of its own.

Stacks are larger rather than more. DeepSeek-V3 has 174 leaves of experts, and on 64
devices each of them fills a stack.
"""


@dataclasses.dataclass(frozen=True)
class Bundle:
    """Leaves that are exchanged together, and where their matrices are in stacks.

    Attributes:
        paths: The leaves.
        views: The view of each.
        ownership: Who owns their matrices.
        exchange: How they move.
        spec: Mesh axes of each axis of what is exchanged, one of the leaves or all of
            them joined.
        slots: For each piece of a matrix the name of its stack, and where its sections
            are among those that the stack has of each matrix: first, last + 1.
    """

    paths: tuple[str, ...]
    views: tuple[MatrixView, ...]
    ownership: Ownership
    exchange: Exchange
    spec: Spec
    slots: tuple[tuple[str, int, int], ...]

    @property
    def stacks(self) -> tuple[str, ...]:
        """The names of the stacks."""
        return tuple(dict.fromkeys(name for name, _, _ in self.slots))

    @property
    def is_joined(self) -> bool:
        """Whether different leaves are exchanged as one; see ``_depths``."""
        return len(set(self.views)) > 1

    def exchanged(self, leaves: list[Array], sides: Sides) -> list[Array]:
        """What is exchanged of a device's parts of leaves, or of their statistics."""
        return [joined(leaves, self.views, sides)] if self.is_joined else leaves

    def leaves(self, parts: list[Array]) -> list[Array]:
        """A device's parts of the leaves, from what was exchanged."""
        return apart(parts[0], self.views) if self.is_joined else parts


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
    """Groups matrix leaves of equal matrices, dtype and spec; gives them to owners.

    Partners have one owner, and the same places in their stacks.
    """
    inside = axes_inside(views, specs, owner_axes)
    check_no_teams(teams, inside)
    sizes = dict(mesh.shape) if views else {}
    pools: dict[tuple, list[tuple[str, ...]]] = {}
    for unit in units_of(views, pairs):
        types = [dtypes.canonicalize_dtype(leaves[path].dtype) for path in unit]
        kinds = [
            (*with_layers(views[p], specs[p], 1), t)
            for p, t in zip(unit, types, strict=True)
        ]
        pools.setdefault(tuple(kinds), []).append(unit)
    chosen: list[Leaves] = []
    ownerships: list[Ownership] = []
    options = {"axes": owner_axes, "sizes": sizes, "pad_to": pad_to}
    make = functools.partial(_ownership, inside=inside, **options)
    for kinds, units in pools.items():
        owned = [make(view, spec) for view, spec, _ in kinds]
        batch = lambda unit: views[unit[0]].batch
        each = list(map(batch, units))
        least = -(-sum(each) // MOST_STACKS) + max(each) - 1
        limit = min([_bound(own, units[0], least, max_batch) for own in owned])
        for chunk in chunks(units, limit, size=batch):
            columns = zip(kinds, zip(*chunk, strict=True), strict=True)
            for k, ((_, _, dtype), paths) in enumerate(columns):
                found = tuple([views[p] for p in paths])
                view, spec, number = as_equal(found, specs[paths[0]])
                own = make(view, spec, leaves=number)
                ownerships.append(dataclasses.replace(own, follows=k > 0))
                chosen.append(Leaves(paths, found, dtype, spec))
    return _of_all(with_teams(ownerships, teams), chosen, inside)


def _of_all(
    ownerships: Sequence[Ownership], chosen: Sequence[Leaves], inside: tuple[str, ...]
) -> Bundled:
    bundles: list[Bundle] = []
    groups: dict[str, Group] = {}
    partners: dict[str, str] = {}
    for unit in in_units(ownerships):
        each = [(ownerships[i], chosen[i]) for i in unit]
        # Pieces of partners share a stack if they do for both.
        kinds = list(zip(*(shapes_of(own.matrix) for own, _ in each), strict=True))
        made: list[dict[str, Group]] = []
        for own, found in each:
            bundle, stacks = make_bundle(found, own, inside, kinds)
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
    inside: tuple[str, ...],
    axes: tuple[str, ...],
    sizes: Mapping[str, int],
    pad_to: int | None,
    leaves: int = 1,
) -> Ownership:
    """The ownership of equal leaves."""
    spec = without(spec, inside)
    batch = [x for a in view.batch_axes for x in spec[a] if x not in axes]
    return Ownership(view, spec, axes + tuple(batch), sizes, leaves, pad_to)


def _bound(
    own: Ownership, paths: Sequence[str], least: int, max_batch: int | None
) -> int:
    """The largest number of matrices that are exchanged together.

    By default, `least` with which there are no more than `MOST_STACKS`, or more.
    """
    devices = math.prod([own.sizes[x] for x in own.owner_axes])
    batch = tuple([x for a in own.view.batch_axes for x in own.spec[a]])
    one = whole_matrix(own.view)
    if own.pad_to is not None:
        check_padding(own.pad_to, paths, own.view, own.owner_axes, batch, devices)
        if batch:
            return 1
    # With `pad_to`, the bounds of stacks must not depend on the mesh, either.
    limit = matrices_per_device(one, max_batch) * (own.pad_to or devices)
    return limit if max_batch else max(limit, least)


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
    leaves: Leaves,
    own: Ownership,
    inside: tuple[str, ...],
    kinds: Sequence[Any],
) -> tuple[Bundle, dict[str, Group]]:
    """The bundle of leaves of equal matrices, and its stacks.

    Args:
        leaves: The leaves.
        own: Who owns their matrices.
        inside: The mesh axes inside matrices.
        kinds: For each piece of a matrix a value that is the same for those that share
            a stack, which have one shape.
    """
    view, pieces = own.view, own.matrix.pieces
    within = [tuple([x for x in entry if x in inside]) or None for entry in leaves.spec]
    slots: dict[int, tuple[str, int, int]] = {}
    groups: dict[str, Group] = {}
    for indices in _by_kind(kinds):
        blocks = [leaves.manifest(own, i, pieces[i].count) for i in indices]
        manifest = np.concatenate(blocks, axis=2).reshape(-1, 4)
        spec = view.spec_of_piece(within)
        group = make_group(
            rows=pieces[indices[0]].rows,
            cols=pieces[indices[0]].cols,
            dtype=leaves.dtype,
            residual=view.residual,
            spec=(own.owner_axes, *spec[1:]),
            members=leaves.members(own, indices),
            ids=manifest[:, :2],
            forms=manifest[:, 2:],
        )
        groups[group.name] = group
        start = 0
        for i in indices:
            end = start + pieces[i].count
            slots[i] = group.name, start, end
            start = end
    ordered = tuple([slots[i] for i in range(len(pieces))])
    paths, views, _, spec = leaves
    return Bundle(paths, views, own, Exchange(own), spec, ordered), groups


def shapes_of(matrix: MatrixView) -> list[tuple[int, int]]:
    """The shape of each piece of a matrix."""
    return [(piece.rows, piece.cols) for piece in matrix.pieces]


def _by_kind(kinds: Sequence[Any]) -> list[list[int]]:
    """The numbers of pieces that share a stack."""
    found: dict[Any, list[int]] = {}
    for i, kind in enumerate(kinds):
        found.setdefault(kind, []).append(i)
    return list(found.values())
