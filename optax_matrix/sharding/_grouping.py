"""Groups leaves into the stacks of owners."""

import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from jax import dtypes

from optax_matrix.matrices.pairs import Pairs
from optax_matrix.matrices.view import MatrixView
from optax_matrix.sharding._balance import with_teams
from optax_matrix.sharding._bundles import (
    Bundle,
    make_bundle,
    matrices_per_device,
    shapes_of,
)
from optax_matrix.sharding._checks import check_no_teams, check_padding
from optax_matrix.sharding._owner_layout import OwnerLayout, without
from optax_matrix.sharding._ownership import Ownership, check_same_owners, in_units
from optax_matrix.sharding._param_specs import Spec
from optax_matrix.stacks.layout import Group, chunks, units_of


class _Leaves(NamedTuple):
    """Equal leaves: their paths, dtype and spec."""

    paths: list[str]
    dtype: Any
    spec: Spec


def owner_layout(
    leaves: Mapping[str, Any],
    views: Mapping[str, MatrixView],
    specs: Mapping[str, Spec],
    owner_axes: tuple[str, ...],
    mesh: Any,
    *,
    pairs: Pairs = MappingProxyType({}),
    max_batch: int | None = None,
    pad_to: int | None = None,
    teams: int = 1,
) -> OwnerLayout:
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
        for chunk in chunks(units, limit, size=lambda _, own=owned[0]: own.matrices):
            columns = zip(owned, kinds, zip(*chunk, strict=True), strict=True)
            for k, (own, (_, dtype, spec), paths) in enumerate(columns):
                own = dataclasses.replace(own, leaves=len(paths), follows=k > 0)
                ownerships.append(own)
                chosen.append(_Leaves(list(paths), dtype, spec))
    bundles, groups, partners = _bundled(with_teams(ownerships, teams), chosen, inside)
    return OwnerLayout(
        groups=groups,
        views=views,
        bundles=tuple(bundles),
        mesh=mesh,
        specs=specs,
        inside=inside,
        teams=teams,
        max_batch=max_batch,
        partners=partners,
    )


def _bundled(
    ownerships: Sequence[Ownership], chosen: Sequence[_Leaves], inside: tuple[str, ...]
) -> tuple[list[Bundle], dict[str, Group], dict[str, str]]:
    """The bundles of leaves, their stacks, and which stacks are partners."""
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
    return bundles, groups, partners


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
    devices, batch = own.devices(own.owner_axes), own.batch_mesh_axes
    if own.pad_to is not None:
        check_padding(own.pad_to, paths, own.view, own.owner_axes, batch, devices)
    # With `pad_to`, the bounds of stacks must not depend on the mesh, either.
    limit = matrices_per_device(own.matrix, max_batch) * (own.pad_to or devices)
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
