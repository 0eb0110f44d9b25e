"""What a step costs each device, from shapes, specs and a mesh alone."""

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import optax

from optax_matrix._mesh.specs import ways
from optax_matrix.matrices.paths import named_leaves
from optax_matrix.matrices.rules import Resolved
from optax_matrix.sharding._balance import work_of
from optax_matrix.sharding._bundles import Bundle
from optax_matrix.sharding._chips import shape_of, with_chips
from optax_matrix.sharding._cost_model import CostModel
from optax_matrix.sharding._exchange import Exchange
from optax_matrix.sharding._loads import busiest, sent_in_teams
from optax_matrix.sharding._owner_layout import OwnerLayout, owner_layout
from optax_matrix.sharding._planned import Plan, PlannedGroup
from optax_matrix.sharding._state_specs import recorded


def plan(
    tx: optax.GradientTransformation, params: Any, param_specs: Any = None
) -> Plan:
    r"""Tells what a step costs each device, before anything is compiled.

    Work is relative. That of an m x n matrix, :math:`m \le n`, is
    :math:`4 m^2 n + 2 m^3`, as in a step of Newton-Schulz; other methods grow as fast
    with both sides. Padding counts only where mesh axes stay inside the matrices:
    elsewhere `orthogonalize` skips it (other blocks do not). Matrices that teams share
    count as if `linalg.newton_schulz` were all the work on them. Nothing is measured;
    ``python -m examples.study aot`` tells what a compiler makes of a step.

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
        group                   matrices  owners  chips  team  held  work  sent MiB
        4096x4096-out@c10bf2c8  32        32      256    1     1     100%  127.5
        busiest of 256 devices: 8.00x an even split
        sent by a device: 127.5 MiB; its whole gradients: 64.0 MiB
        state on a device: 64.0 MiB
        owners(('tp',)): 1.00x, if the partitioner splits the rest evenly
        owners(('fsdp',)): 2.00x, if the partitioner splits the rest evenly
        owners(plan='auto'): 1.00x with newton_schulz, 616.0 MiB in teams
    """
    state, specs, found = recorded(tx, params, param_specs)
    mesh = found.mesh
    sizes = {} if mesh is None else dict(mesh.shape)
    owned = [(x, wire) for x, wire in found.layouts if isinstance(x, OwnerLayout)]
    bundles = [(b, x, wire) for x, wire in owned for b in x.bundles]
    exchanges = [bundle.exchange for bundle, _, _ in bundles]
    total = sum(work_of(e) * _count(e) for e in exchanges)
    layouts = [layout for layout, _ in owned if layout.bundles]
    others = {
        axes: work
        for layout in layouts[:1]
        for axes in _subsets(tuple(sizes))
        if (work := _busiest_with(layout, params, axes)) is not None
    }
    return Plan(
        groups=tuple(_group(*each, params, total) for each in bundles),
        kept=sum(
            len(group.ids)
            for layout, _ in found.layouts
            if not isinstance(layout, OwnerLayout)
            for group in layout.groups.values()
        ),
        devices=math.prod(sizes.values()),
        work=max(map(_busiest, layouts), default=1.0),
        shared=sum(sent_in_teams(_exchanges(x), x.cost_model) for x in layouts),
        state_bytes=sum(
            x.size * x.dtype.itemsize // ways(spec, sizes)
            for x, spec in zip(
                jax.tree.leaves(state), jax.tree.leaves(specs), strict=True
            )
        ),
        stack_bytes=sum(
            bundle.exchange.owned
            * math.prod((bundle.exchange.view.rows, bundle.exchange.view.cols))
            * named_leaves(params)[bundle.paths[0]].dtype.itemsize
            for bundle, _, _ in bundles
        ),
        others=tuple(sorted(others.items(), key=lambda item: (-len(item[0]), item[1]))),
        whole_along=tuple(axis for axis in sizes if axis not in _splitting(layouts)),
        auto=_auto(layouts),
    )


def _splitting(layouts: list[OwnerLayout]) -> set[str]:
    """Mesh axes that split some matrix with owners."""
    specs = (spec for layout in layouts for spec in layout.specs.values())
    return {axis for spec in specs for entry in spec for axis in entry}


def _group(
    bundle: Bundle, layout: OwnerLayout, wire: Any, params: Any, total: float
) -> PlannedGroup:
    exchange = bundle.exchange
    table = exchange.owned_by()
    dtype = jnp.dtype(named_leaves(params)[bundle.paths[0]].dtype)
    width = min(dtype.itemsize, jnp.dtype(wire or dtype).itemsize)
    return PlannedGroup(
        name=", ".join(dict.fromkeys(name for name, _, _ in bundle.places)),
        shape=shape_of(exchange),
        matrices=_count(exchange),
        owners=int((table >= 0).any(axis=1).sum()),
        chips=math.prod(
            exchange.sizes[a] for entry in layout.specs[bundle.paths[0]] for a in entry
        ),
        team=exchange.chips,
        held=exchange.owned,
        work=work_of(exchange) * _count(exchange) / total,
        sent=2 * width * exchange.sent,
    )


def _count(exchange: Exchange) -> int:
    return exchange.count * exchange.view.batch


def _exchanges(layout: OwnerLayout) -> list[Exchange]:
    return [bundle.exchange for bundle in layout.bundles]


def _busiest_with(layout: OwnerLayout, params: Any, axes: tuple[str, ...]) -> Any:
    """Work with other owner axes; None if the matrices cannot be placed so."""
    leaves = named_leaves(params)
    resolved = {p: Resolved(v, layout.reasons[p]) for p, v in layout.views.items()}
    try:
        other = owner_layout(resolved, leaves, layout.specs, axes, layout.mesh)
    except ValueError:
        return None
    return _busiest(other)


def _busiest(layout: OwnerLayout) -> float:
    """Work of the busiest device; axes inside matrices split it evenly."""
    among = [
        math.prod(b.exchange.sizes[a] for a in axes if a in layout.inside)
        for b in layout.bundles
        for axes in [itertools.chain(*layout.specs[b.paths[0]])]
    ]
    return busiest(_exchanges(layout), among, padded=bool(layout.inside))


def _auto(layouts: list[OwnerLayout]) -> tuple[float, int] | None:
    """Work and bytes in teams with ``plan="auto"``, where no teams are now."""
    plain = [_exchanges(layout) for layout in layouts]
    if any(e.chips > 1 for exchanges in plain for e in exchanges):
        return None
    if not layouts or any(layout.inside for layout in layouts):
        return None
    teams = [with_chips(exchanges, "auto") for exchanges in plain]
    bytes_in_teams = sum(sent_in_teams(x, CostModel()) for x in teams)
    return (max(map(busiest, teams)), bytes_in_teams) if bytes_in_teams else None


def _subsets(axes: tuple[str, ...]):
    counts = range(1, len(axes) + 1)
    return itertools.chain(*(itertools.combinations(axes, n) for n in counts))
