"""What a step costs each device, from shapes, specs and a mesh alone."""

import itertools
import math
from typing import Any

import jax
import numpy as np

from optax_matrix._arguments import AnyOptimizer, checked
from optax_matrix._mesh import Recorder, shards
from optax_matrix._paths import group_of, leaves_with_keys, named_leaves
from optax_matrix.matrices.boxes import unboxed
from optax_matrix.sharding._bundles import Bundle
from optax_matrix.sharding._chips import ChipName
from optax_matrix.sharding._costs import (
    Placed,
    busiest,
    by_teams,
    choice_of,
    least_sent,
    ownerships_of,
    real_sent,
    sent_for_replicas,
    sent_in_teams,
    sent_of,
    subsets,
    why_no_teams,
    within_hosts,
    work_in,
)
from optax_matrix.sharding._owner_layout import OwnerLayout
from optax_matrix.sharding._planned import Plan, PlannedChoice, PlannedGroup
from optax_matrix.sharding._state_specs import recorded
from optax_matrix.stacks.identities import FILLER
from optax_matrix.stacks.slots import map_states, whole_shapes


@checked
def plan(
    tx: AnyOptimizer,
    params: Any,
    param_specs: Any = None,
    *,
    chip: ChipName | None = None,
) -> Plan:
    r"""Computes what a step costs each device, before anything is compiled.

    Work is relative. That of an m x n matrix, :math:`m \le n`, is
    :math:`4 m^2 n + 2 m^3`, as in a step of Newton-Schulz; other methods grow as fast
    with both sides. Padding counts only if mesh axes stay inside the matrices; without
    such axes `orthogonalize` skips it (other blocks do not). Matrices that teams share
    count as if `linalg.newton_schulz` were all the work on them.

    Bytes are those of the exchange between shards and owners. The least is that of an
    even exchange without padding: nearly 2 s P / N for P parameters of s bytes that N
    devices split. Mesh axes that stay inside the matrices add what the partitioner
    sends, which the plan does not know. Gradients of parameters that are replicated
    along a mesh axis need an all-reduce besides, with any optimizer.

    The lines ``teams=`` say what each other number of ``teams`` gives, or one line why
    there is none. Other choices of axes are listed if they have at least 10% less work
    or bytes, and no other choice has less of both. Nothing is measured;
    ``python -m examples.study aot`` compiles a step and prints the compiler's numbers.

    Args:
        tx: Any optimizer, with or without `on_matrices` inside.
        params: Parameters, or their shapes as `jax.ShapeDtypeStruct`.
        param_specs: As in `state_specs`. On an abstract mesh, no devices are needed.
        chip: A chip whose published peaks turn work and bytes into milliseconds:
            ``"v5e"``, ``"v5p"``, ``"v6e"``, ``"h100"`` or ``"h200"`` (eight in a node).
            They are estimates: the least that a step takes if all work is five steps of
            Newton-Schulz in bfloat16. No step was timed.

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
        group               matrices  owners  shards  team  each  work  sent MiB
        4096x4096@c10bf2c8  32        32      256     1     1     100%  127.5
        busiest of 256 devices: 8.00x an even split
        sent by a device: 127.5 MiB, 8.0x the least of 15.9 MiB; 111.6 MiB are padding
        state on a device: 64.0 MiB; an even split: 8.0 MiB
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
    total = sum(work_in(b.ownership) for b, _, _ in bundles)
    layouts = [(layout, wire) for layout, wire in owned if layout.bundles]
    replicated = tuple(x for x in sizes if x not in _splitting(owned))
    along, reduced = sent_for_replicas(leaves, found.specs, sizes)
    least = round(sum(least_sent(b, wire, leaves) for b, _, wire in bundles))
    moved = sum(sum(sent_of(x, wire, leaves)) for x, wire in owned)
    real = sum(real_sent(b, wire, leaves) for b, _, wire in bundles)
    teams = tuple(by_teams(layouts, leaves))
    has_others = not layouts or any(x.teams > 1 for x in teams)
    held, even_held = _state(state, specs, found, sizes)
    return Plan(
        groups=tuple(
            _group(bundle, sent, total)
            for x, wire in owned
            for bundle, sent in zip(x.bundles, sent_of(x, wire, leaves), strict=True)
        ),
        without_owners=sum(
            len(group.ids)
            for layout, _ in found.layouts
            if not isinstance(layout, OwnerLayout)
            for group in layout.groups.values()
        ),
        devices=math.prod(sizes.values()),
        work=max((busiest(x) for x, _ in layouts), default=1.0),
        operations=total / math.prod(sizes.values()),
        sent_in_teams=sum(sent_in_teams(ownerships_of(x)) for x, _ in layouts),
        least_sent=least,
        padding=round(moved - real),
        sent_for_replicas=reduced,
        replicas=along,
        state_bytes=held,
        even_state_bytes=even_held,
        stack_bytes=sum(
            b.ownership.matrices_per_owner
            * math.prod(b.ownership.sides)
            * leaves[b.paths[0]].dtype.itemsize
            for b, _, _ in bundles
        ),
        teams=max((x.teams for x, _ in layouts), default=1),
        by_teams=teams,
        no_teams="" if has_others else why_no_teams(layouts),
        others=_others(layouts, leaves, tuple(sizes), replicated),
        replicated_axes=replicated,
        has_inside=any(layout.inside for layout, _ in layouts),
        chip=chip,
    )


def _others(
    layouts: list[Placed],
    leaves: Any,
    axes: tuple[str, ...],
    replicated: tuple[str, ...],
) -> tuple[PlannedChoice, ...]:
    """All choices of owner axes; every layout would have the same ones."""
    if not layouts:
        return ()
    found = [choice_of(layouts, leaves, some) for some in subsets(axes)]
    found.append(within_hosts(layouts, leaves, replicated))
    choices = [choice for choice in found if choice is not None]
    return tuple(sorted(choices, key=lambda x: (-len(x.axes), x.work)))


def _state(state: Any, specs: Any, found: Recorder, sizes: Any) -> tuple[int, int]:
    """Bytes of state on a device, and if all had equally much and no padding."""
    groups = {n: g for layout, _ in found.layouts for n, g in layout.groups.items()}
    filler = np.array(FILLER, np.uint32)
    shares = {n: np.mean((g.ids != filler).any(axis=1)) for n, g in groups.items()}
    held, real = 0, 0.0
    leaves = zip(leaves_with_keys(state), jax.tree.leaves(specs), strict=True)
    for (_, x), spec in leaves:
        held += x.size * x.dtype.itemsize // shards(spec, sizes)
    whole = lambda node: whole_shapes(unboxed(node)[0])
    for keys, x in leaves_with_keys(map_states(whole, state)):
        real += x.size * x.dtype.itemsize * (group_of(keys, shares) or 1.0)
    return held, round(real / math.prod(sizes.values()))


def _splitting(owned: list[tuple[OwnerLayout, Any]]) -> set[str]:
    """Mesh axes that split some matrix with owners."""
    specs = (spec for layout, _ in owned for spec in layout.specs.values())
    return {axis for spec in specs for entry in spec for axis in entry}


def _group(bundle: Bundle, sent: int, total: float) -> PlannedGroup:
    own = bundle.ownership
    return PlannedGroup(
        name=", ".join(bundle.stacks),
        shape=own.sides,
        matrices=own.matrices,
        owners=int((own.table >= 0).any(axis=1).sum()),
        shards=own.devices(itertools.chain(*bundle.spec)),
        team=own.team_size,
        each=own.matrices_per_owner,
        work=work_in(own) / total,
        sent=sent,
    )
