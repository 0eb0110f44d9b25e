"""Work and bytes of a step with a layout, and with other layouts."""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from jax.sharding import AbstractMesh

from optax_matrix._mesh import shards
from optax_matrix.sharding._balance import TEAMS, loads, with_teams, work_of
from optax_matrix.sharding._bundles import Bundle
from optax_matrix.sharding._exchange import Exchange
from optax_matrix.sharding._owner_layout import OwnerLayout, owner_layout
from optax_matrix.sharding._ownership import Ownership
from optax_matrix.sharding._planned import PlannedChoice, PlannedTeams
from optax_matrix.sharding._pools import numbers_sent

Placed = tuple[OwnerLayout, Any]
"""A layout, and the dtype in which its gradients are sent."""

_NODE = 8  # A plan supposes that a host has so many devices.


def sent_of(layout: OwnerLayout, wire: Any, leaves: Any) -> list[int]:
    """Bytes that a device sends for each bundle: gradients to owners, updates back."""
    exchanges = [bundle.exchange for bundle in layout.bundles]
    kinds = [_dtype_sent(bundle, wire, leaves) for bundle in layout.bundles]
    numbers = numbers_sent(exchanges, kinds, not layout.inside)
    return [n * kind.itemsize for n, kind in zip(numbers, kinds, strict=True)]


def least_sent(bundle: Bundle, wire: Any, leaves: Any) -> float:
    """The same without padding, if all devices send equally much.

    Devices that hold the same part of the leaves share the work and gather the updates,
    or all do the same; whichever sends less.
    """
    own = bundle.ownership
    split = own.devices([x for a in own.matrix_axes for x in bundle.spec[a]])
    parts = own.devices(itertools.chain(*bundle.spec))
    here = own.matrices * math.prod(own.sides) / parts
    copies = math.prod(own.sizes.values()) / parts
    exchanged, gathered = 2 * (1 - 1 / split), 1 - 1 / copies
    numbers = here * min(exchanged, exchanged / copies + gathered)
    return _dtype_sent(bundle, wire, leaves).itemsize * numbers


def real_sent(bundle: Bundle, wire: Any, leaves: Any) -> float:
    """Bytes of matrices among those that a device sends, on average of all devices."""
    own, exchange = bundle.ownership, bundle.exchange
    replicas, places = exchange.places
    each = own.matrices_per_shard * math.prod(exchange.part) / (replicas * places)
    numbers = each * (2 * (places - 1) + places * (replicas - 1))
    return _dtype_sent(bundle, wire, leaves).itemsize * numbers


def _dtype_sent(bundle: Bundle, wire: Any, leaves: Any) -> Any:
    return bundle.exchange.dtype_sent(leaves[bundle.paths[0]].dtype, wire)


def ownerships_of(layout: OwnerLayout) -> list[Ownership]:
    """Who owns the matrices of each bundle."""
    return [bundle.ownership for bundle in layout.bundles]


def work_in(own: Ownership) -> float:
    """Operations of a step on all matrices."""
    return own.matrices * work_of(own.matrix)


def sent_in_teams(ownerships: list[Ownership]) -> int:
    """Bytes that a device sends at most in its teams in a step."""
    return int(loads(ownerships).sent.max())


def by_teams(layouts: list[Placed], leaves: Any) -> Iterator[PlannedTeams]:
    """Work and bytes with each number that `teams` can be."""
    every = [
        own for layout, _ in layouts for own in ownerships_of(layout) if own.remainder
    ]
    most = max((own.owners_per_shard for own in every), default=0)
    if any(layout.inside for layout, _ in layouts):
        return
    for teams in (x for x in TEAMS if x <= most):
        try:
            changed = [(_in_teams(layout, teams), wire) for layout, wire in layouts]
        except ValueError:  # They do not divide the owners.
            continue
        sent = sum(sum(sent_of(x, wire, leaves)) for x, wire in changed)
        sent += sum(sent_in_teams(ownerships_of(layout)) for layout, _ in changed)
        work = max(busiest(layout) for layout, _ in changed)
        yield PlannedTeams(teams, work, sent)


def why_no_teams(layouts: list[Placed]) -> str:
    """Why `teams` can only be 1, if `by_teams` has no other number."""
    every = [own for layout, _ in layouts for own in ownerships_of(layout)]
    if any(layout.inside for layout, _ in layouts):
        return "mesh axes stay inside matrices"
    if any(own.pad_to for own in every):
        return "`pad_to` fixes the order of the matrices"
    if not any(own.remainder for own in every):
        return "no matrix is left over after the full rounds"
    return "2, 4 and 8 do not divide the owners"


def _in_teams(layout: OwnerLayout, teams: int) -> OwnerLayout:
    """The layout with another number of owners in a team."""
    pairs = zip(layout.bundles, with_teams(ownerships_of(layout), teams), strict=True)
    bundles = [
        dataclasses.replace(bundle, ownership=own, exchange=Exchange(own))
        for bundle, own in pairs
    ]
    return dataclasses.replace(layout, bundles=tuple(bundles), teams=teams)


def choice_of(
    layouts: list[Placed], leaves: Any, axes: tuple[str, ...]
) -> PlannedChoice | None:
    """Work and bytes with other owner axes; None if they cannot place the matrices."""
    make = lambda x: owner_layout(leaves, x.views, x.specs, axes, x.mesh, pairs=x.pairs)
    try:
        others = [(make(layout), wire) for layout, wire in layouts]
    except ValueError:
        return None
    return PlannedChoice(
        axes,
        work=max(busiest(x) for x, _ in others),
        sent=sum(sum(sent_of(x, wire, leaves)) for x, wire in others),
        has_inside=any(x.inside for x, _ in others),
    )


def busiest(layout: OwnerLayout) -> float:
    """Work of the busiest device over an even split among all devices of the mesh.

    Along mesh axes that neither own matrices nor split them, all devices do the same.
    """
    ownerships = ownerships_of(layout)
    if not layout.inside:
        return _relative(ownerships)
    most = 0.0  # Axes inside matrices split them evenly, and padding is computed.
    for bundle, own in zip(layout.bundles, ownerships, strict=True):
        axes = itertools.chain(*bundle.spec)
        among = own.devices([x for x in axes if x in layout.inside])
        most += work_in(own) / own.matrices * own.matrices_per_owner / among
    return most / even(ownerships)


def _relative(ownerships: list[Ownership]) -> float:
    """Work of the busiest device where owners have whole matrices, or share them."""
    return float(loads(ownerships).work.max() / even(ownerships))


def even(ownerships: list[Ownership]) -> float:
    """Work of each device if all had equally much."""
    return sum(map(work_in, ownerships)) / math.prod(ownerships[0].sizes.values())


def within_hosts(
    layouts: list[Placed], leaves: Any, replicated: tuple[str, ...]
) -> PlannedChoice | None:
    """The same owner axes, but only eight devices of a replicated axis.

    None unless there is one such axis of more devices, and all layouts have the same
    owner axes.
    """
    sizes = dict(layouts[0][0].mesh.shape)
    found = {x.bundles[0].ownership.owner_axes for x, _ in layouts}
    long = [x for x in replicated if x in min(found) and sizes[x] > _NODE]
    if len(found) != 1 or len(long) != 1 or sizes[long[0]] % _NODE:
        return None
    (owner_axes,), (axis,) = found, long
    outer = {f"{axis} of hosts": sizes[axis] // _NODE}
    cut = outer | sizes | {axis: _NODE}
    mesh = AbstractMesh(tuple(cut.values()), tuple(cut))
    shorter = [(dataclasses.replace(x, mesh=mesh), wire) for x, wire in layouts]
    choice = choice_of(shorter, leaves, owner_axes)
    return None if choice is None else choice._replace(cut=axis)


def sent_for_replicas(
    leaves: Mapping[str, Any], specs: Mapping[str, Any], sizes: Mapping[str, int]
) -> tuple[tuple[str, ...], int]:
    """The mesh axes along which all parameters are replicated, and what they cost.

    The cost is the bytes that a device sends in an all-reduce of all gradients: each
    of them twice, but for the share of the device itself.
    """
    named = {
        x
        for spec in specs.values()
        for entry in spec
        for x in ((entry,) if isinstance(entry, str) else entry or ())
    }
    axes = tuple([x for x in sizes if x not in named and sizes[x] > 1])
    copies = math.prod([sizes[x] for x in axes])
    held = sum(
        math.prod(x.shape) * np.dtype(x.dtype).itemsize // shards(specs[path], sizes)
        for path, x in leaves.items()
    )
    return axes, 2 * held * (copies - 1) // copies


def subsets(axes: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """All choices of some axes."""
    counts = range(1, len(axes) + 1)
    return itertools.chain(*(itertools.combinations(axes, n) for n in counts))
