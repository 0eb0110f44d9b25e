"""What a step costs each device, from shapes, specs and a mesh alone."""

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from optax_matrix._arguments import AnyOptimizer, checked
from optax_matrix._mesh import shards
from optax_matrix._paths import named_leaves
from optax_matrix.sharding._balance import TEAMS, loads, with_teams, work_of
from optax_matrix.sharding._bundles import Bundle
from optax_matrix.sharding._exchange import Exchange
from optax_matrix.sharding._owner_layout import OwnerLayout, owner_layout
from optax_matrix.sharding._ownership import Ownership
from optax_matrix.sharding._planned import (
    Plan,
    PlannedChoice,
    PlannedGroup,
    PlannedTeams,
)
from optax_matrix.sharding._state_specs import recorded


@checked
def plan(tx: AnyOptimizer, params: Any, param_specs: Any = None) -> Plan:
    r"""Computes what a step costs each device, before anything is compiled.

    Work is relative. That of an m x n matrix, :math:`m \le n`, is
    :math:`4 m^2 n + 2 m^3`, as in a step of Newton-Schulz; other methods grow as fast
    with both sides. Padding counts only if mesh axes stay inside the matrices; without
    such axes `orthogonalize` skips it (other blocks do not). Matrices that teams share
    count as if `linalg.newton_schulz` were all the work on them.

    Bytes are those of the exchange between shards and owners. The least is that of an
    even exchange without padding: nearly 2 s P / N for P parameters of s bytes that N
    devices split. Mesh axes that stay inside the matrices add what the partitioner
    sends, which the plan does not know. The lines ``teams=`` say what each other number
    of ``teams`` gives. Other choices of axes are listed if they have at least 10% less
    work or bytes, and no other choice has less of both. Nothing is measured; ``python
    -m examples.study aot`` compiles a step and prints the compiler's numbers.

    Args:
        tx: Any optimizer, with or without `on_matrices` inside.
        params: Parameters, or their shapes as `jax.ShapeDtypeStruct`.
        param_specs: As in `state_specs`. On an abstract mesh, no devices are needed.

    Returns:
        The plan; `print` shows a table.

    Raises:
        ValueError: As `state_specs`.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec as P
        >>> import optax_matrix as om
        >>> mesh = AbstractMesh((64, 4), ("fsdp", "tp"))
        >>> kernel = jax.ShapeDtypeStruct((4096, 4096), jnp.float32)
        >>> params = {f"layers/{i}/o/kernel": kernel for i in range(32)}
        >>> specs = NamedSharding(mesh, P("tp", "fsdp"))
        >>> owners = om.owners(("fsdp", "tp"), param_specs=specs)
        >>> print(om.sharding.plan(om.muon(0.02, placement=owners), params, specs))
        group                   matrices  owners  shards  team  each  work  sent MiB
        4096x4096-out@c10bf2c8  32        32      256     1     1     100%  127.5
        busiest of 256 devices: 8.00x an even split
        sent by a device: 127.5 MiB, 8.0x the least; its whole gradients: 64.0 MiB
        state on a device: 64.0 MiB
        teams=2: 4.00x; 479.5 MiB, 30.1x the least
        teams=4: 2.00x; 655.5 MiB, 41.1x the least
        teams=8: 1.00x; 743.5 MiB, 46.7x the least
        owners(('tp',)): 1.00x; 768.0 MiB or more, 48.2x the least, if the ...
        owners(('fsdp',)): 2.00x; 126.0 MiB or more, 7.9x the least, if the ...
    """
    leaves = named_leaves(params)
    state, specs, found = recorded(tx, params, param_specs)
    sizes = {} if found.mesh is None else dict(found.mesh.shape)
    owned = [(x, wire) for x, wire in found.layouts if isinstance(x, OwnerLayout)]
    bundles = [(b, x, wire) for x, wire in owned for b in x.bundles]
    total = sum(_work(b.ownership) for b, _, _ in bundles)
    layouts = [(layout, wire) for layout, wire in owned if layout.bundles]
    others = [
        choice
        for layout, wire in layouts[:1]
        for axes in _subsets(tuple(sizes))
        if (choice := _choice(layout, leaves, axes, wire)) is not None
    ]
    arrays = zip(jax.tree.leaves(state), jax.tree.leaves(specs), strict=True)
    return Plan(
        groups=tuple(_group(*each, leaves, total) for each in bundles),
        without_owners=sum(
            len(group.ids)
            for layout, _ in found.layouts
            if not isinstance(layout, OwnerLayout)
            for group in layout.groups.values()
        ),
        devices=math.prod(sizes.values()),
        work=max((_busiest(x) for x, _ in layouts), default=1.0),
        sent_in_teams=sum(_sent_in_teams(_of(x)) for x, _ in layouts),
        least_sent=round(sum(_least_sent(*each, leaves) for each in bundles)),
        state_bytes=sum(
            x.size * x.dtype.itemsize // shards(spec, sizes) for x, spec in arrays
        ),
        stack_bytes=sum(
            b.ownership.matrices_per_owner
            * math.prod(b.ownership.sides)
            * leaves[b.paths[0]].dtype.itemsize
            for b, _, _ in bundles
        ),
        teams=max((x.teams for x, _ in layouts), default=1),
        by_teams=tuple(_by_teams(layouts, leaves)),
        others=tuple(sorted(others, key=lambda x: (-len(x.axes), x.work))),
        replicated_axes=tuple(x for x in sizes if x not in _splitting(owned)),
        has_inside=any(layout.inside for layout, _ in layouts),
    )


def _splitting(owned: list[tuple[OwnerLayout, Any]]) -> set[str]:
    """Mesh axes that split some matrix with owners."""
    specs = (spec for layout, _ in owned for spec in layout.specs.values())
    return {axis for spec in specs for entry in spec for axis in entry}


def _group(
    bundle: Bundle, layout: OwnerLayout, wire: Any, leaves: Any, total: float
) -> PlannedGroup:
    own = bundle.ownership
    return PlannedGroup(
        name=", ".join(bundle.stacks),
        shape=own.sides,
        matrices=own.matrices,
        owners=int((own.table >= 0).any(axis=1).sum()),
        shards=own.devices(itertools.chain(*layout.specs[bundle.paths[0]])),
        team=own.team_size,
        each=own.matrices_per_owner,
        work=_work(own) / total,
        sent=_sent(bundle, wire, leaves),
    )


def _sent(bundle: Bundle, wire: Any, leaves: Any) -> int:
    """Bytes that a device sends: gradients to owners, updates back."""
    return 2 * _width(bundle, wire, leaves) * bundle.exchange.numbers_sent


def _least_sent(bundle: Bundle, layout: OwnerLayout, wire: Any, leaves: Any) -> float:
    """The same without padding, if all devices send equally much.

    Devices that hold the same part of the leaves share the work and gather the updates,
    or all do the same; whichever sends less.
    """
    own = bundle.ownership
    spec = layout.specs[bundle.paths[0]]
    split = own.devices([x for a in own.matrix_axes for x in spec[a]])
    parts = own.devices(itertools.chain(*spec))
    here = own.matrices * math.prod(own.sides) / parts
    copies = math.prod(own.sizes.values()) / parts
    exchanged, gathered = 2 * (1 - 1 / split), 1 - 1 / copies
    numbers = here * min(exchanged, exchanged / copies + gathered)
    return _width(bundle, wire, leaves) * numbers


def _width(bundle: Bundle, wire: Any, leaves: Any) -> int:
    dtype = jnp.dtype(leaves[bundle.paths[0]].dtype)
    return min(dtype.itemsize, jnp.dtype(wire or dtype).itemsize)


def _of(layout: OwnerLayout) -> list[Ownership]:
    return [bundle.ownership for bundle in layout.bundles]


def _work(own: Ownership) -> float:
    """Operations of a step on all matrices."""
    return own.matrices * work_of(own.matrix)


def _sent_in_teams(ownerships: list[Ownership]) -> int:
    """Bytes that a device sends at most in its teams in a step."""
    return int(loads(ownerships).sent.max())


def _by_teams(
    layouts: list[tuple[OwnerLayout, Any]], leaves: Any
) -> Iterator[PlannedTeams]:
    """Work and bytes with each number that `teams` can be."""
    every = [own for layout, _ in layouts for own in _of(layout) if own.remainder]
    most = max((own.owners_per_shard for own in every), default=0)
    if any(layout.inside for layout, _ in layouts):
        return
    for teams in (x for x in TEAMS if x <= most):
        try:
            changed = [(_in_teams(layout, teams), wire) for layout, wire in layouts]
        except ValueError:  # They do not divide the owners.
            continue
        sent = sum(_sent(b, wire, leaves) for x, wire in changed for b in x.bundles)
        sent += sum(_sent_in_teams(_of(layout)) for layout, _ in changed)
        work = max(_busiest(layout) for layout, _ in changed)
        yield PlannedTeams(teams, work, sent)


def _in_teams(layout: OwnerLayout, teams: int) -> OwnerLayout:
    """The layout with another number of owners in a team."""
    pairs = zip(layout.bundles, with_teams(_of(layout), teams), strict=True)
    bundles = [
        dataclasses.replace(bundle, ownership=own, exchange=Exchange(own))
        for bundle, own in pairs
    ]
    return dataclasses.replace(layout, bundles=tuple(bundles), teams=teams)


def _choice(
    layout: OwnerLayout, leaves: Any, axes: tuple[str, ...], wire: Any
) -> PlannedChoice | None:
    """Work and bytes with other owner axes; None if they cannot place the matrices."""
    try:
        other = owner_layout(
            leaves, layout.views, layout.specs, axes, layout.mesh, pairs=layout.pairs
        )
    except ValueError:
        return None
    sent = sum(_sent(bundle, wire, leaves) for bundle in other.bundles)
    return PlannedChoice(axes, _busiest(other), sent, bool(other.inside))


def _busiest(layout: OwnerLayout) -> float:
    """Work of the busiest device over an even split among all devices of the mesh.

    Along mesh axes that neither own matrices nor split them, all devices do the same.
    """
    ownerships = _of(layout)
    if not layout.inside:
        return _relative(ownerships)
    most = 0.0  # Axes inside matrices split them evenly, and padding is computed.
    for bundle, own in zip(layout.bundles, ownerships, strict=True):
        axes = itertools.chain(*layout.specs[bundle.paths[0]])
        among = own.devices([x for x in axes if x in layout.inside])
        most += _work(own) / own.matrices * own.matrices_per_owner / among
    return most / _even(ownerships)


def _relative(ownerships: list[Ownership]) -> float:
    """Work of the busiest device where owners have whole matrices, or share them."""
    return float(loads(ownerships).work.max() / _even(ownerships))


def _even(ownerships: list[Ownership]) -> float:
    return sum(map(_work, ownerships)) / math.prod(ownerships[0].sizes.values())


def _subsets(axes: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    counts = range(1, len(axes) + 1)
    return itertools.chain(*(itertools.combinations(axes, n) for n in counts))
