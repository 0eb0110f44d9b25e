"""State in slots that several stacks share, on the owners of their last rounds."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from optax_matrix._paths import group_of, leaves_with_keys, map_with_keys
from optax_matrix._surroundings import within
from optax_matrix.sharding._bundles import Bundle
from optax_matrix.sharding._stack_specs import is_sharded
from optax_matrix.stacks.layout import Group
from optax_matrix.stacks.placement import MakeState, Step
from optax_matrix.stacks.slots import Slot, in_slots, owns_last, pooled_like, unpooled


@dataclasses.dataclass(frozen=True)
class StatePool:
    """Stacks whose last rounds have different owners.

    Attributes:
        members: For each stack the number of matrices that an owner has in the last
            round; several if they are sections of one leaf.
        axes: The mesh axes of the owners.
        has_matrix: Which owners have a matrix of one of them.
    """

    members: Mapping[str, int]
    axes: tuple[str, ...]
    has_matrix: np.ndarray

    def and_another(self, other: "StatePool") -> "StatePool | None":
        """The pool of both; None if some owner has matrices of both."""
        if self.axes != other.axes or (self.has_matrix & other.has_matrix).any():
            return None
        has_matrix = self.has_matrix | other.has_matrix
        return StatePool({**self.members, **other.members}, self.axes, has_matrix)


def state_pools(
    bundles: Sequence[Bundle], groups: Mapping[str, Group]
) -> tuple[StatePool, ...]:
    """The pools of at least two stacks, that with the largest matrices first."""
    alone = []
    for bundle in bundles:
        own = bundle.ownership
        for name in bundle.stacks if own.remainder else ():
            owners, last = len(own.table), last_of(bundle, groups[name].count)
            has_matrix = owns_last(groups[name].manifest, owners, last)
            alone.append(StatePool({name: last}, own.owner_axes, has_matrix))
    size = lambda pool: [
        last * groups[name].rows * groups[name].cols
        for name, last in pool.members.items()
    ]
    found: list[StatePool] = []
    for pool in sorted(alone, key=size, reverse=True):
        for k, other in enumerate(found):
            if (both := other.and_another(pool)) is not None:
                found[k] = both
                break
        else:
            found.append(pool)
    return tuple(pool for pool in found if len(pool.members) > 1)


def last_of(bundle: Bundle, count: int) -> int:
    """The number of matrices of a stack that an owner has in a round."""
    own = bundle.ownership
    return count // (len(own.table) * own.matrices_per_owner)


def pooled(layout: Any, state: Any) -> Any:
    """A new state in the slots of the layout's pools: of all owners, or of one."""
    nodes: dict[tuple, Any] = {}
    slots: dict[str, Any] = {}
    leaves = leaves_with_keys(state.inner_state)
    for number, pool in enumerate(layout.state_pools):
        owners = 1 if layout.is_local else len(pool.has_matrix)
        for name, last in pool.members.items():
            group, ranks = layout.groups[name], dict[str, int]()
            held = [
                (keys, x)
                for keys, x in leaves
                if group_of(keys, layout.groups) is group and _is_kept(keys, x, group)
            ]
            for keys, x in sorted(held, key=lambda pair: -math.prod(pair[1].shape)):
                dtype = x.dtype.name
                place = ranks[dtype] = ranks.get(dtype, -1) + 1
                slot = Slot(number, place, dtype, (last, *x.shape[1:]))
                full = len(x) > last * owners
                nodes[keys] = {slot.label: x[:0] if full else slot.checksum}
                size = max(slot.size, _length(slots.get(slot.key)))
                slots[slot.key] = jnp.zeros((owners, size), x.dtype)
    empty = map_with_keys(lambda keys, x: nodes.get(keys, x), state.inner_state)
    old = state._replace(inner_state=empty, slots=slots)
    return pooled_like(state, old) if slots else state


def with_slots(layout: Any, step: Step, make_state: MakeState) -> Step:
    """A step on a state that may be in slots."""

    def run(local: Any, stacks: Any, state: Any, arrays: Any) -> tuple[Any, Any]:
        if not in_slots(state):
            return step(local, stacks, state, arrays)
        last = {
            name: last_of(bundle, layout.groups[name].count)
            for bundle in layout.bundles
            for name in bundle.stacks
        }
        rows = {name: state.manifest[name][-n:] for name, n in last.items()}
        rest = layout.on_device(rows)
        own = {n: x[-last[n] :] for n, x in stacks.get("params", {}).items()}
        with within(real={}, shared={}, limit=None):
            fresh = make_state(rest, own or rest.zeros(), arrays)
        whole = unpooled(state, fresh.inner_state)
        new, made = step(local, stacks, whole, arrays)
        return new, pooled_like(made, state)

    return run


def _is_kept(keys: tuple, x: Any, group: Group) -> bool:
    """Whether state is in slots: all of a matrix's size, no counts and no indices."""
    return isinstance(x.dtype, np.dtype) and is_sharded(keys, x, group)


def _length(slots: Any) -> int:
    return 0 if slots is None else slots.shape[1]
