"""States in slots (`stacks.slots`) as states of real matrices alone, on the host."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import dtypes

from optax_matrix._paths import key_name, map_with_keys
from optax_matrix.checkpoint.gathering import on_host, spread
from optax_matrix.matrices.boxes import unboxed
from optax_matrix.stacks.slots import (
    Slot,
    check_slot,
    in_slots,
    is_slot,
    kept_rounds,
    owns_last,
    slot_of,
    slots_in,
    stack_of,
)
from optax_matrix.tree.state import OnMatricesState, is_state, states_in

_INSIDE = "after", "other"  # What may hold further states.


def compact(tree: Any) -> tuple[Any, Callable[[Any], Any]]:
    """A tree without slots, and the function that puts its successor into them.

    Stacks in slots come without padding, as the manifests beside them say, and on the
    host of every process. All other state stays as it is.
    """
    if not any(in_slots(node) for _, node in states_in(tree)):
        return tree, lambda new: new
    nodes, structure = jax.tree.flatten(tree, is_leaf=is_state)
    same = lambda x: (x, lambda new: new)
    pairs = [_compact(x) if is_state(x) else same(x) for x in nodes]

    def restored(new: Any) -> Any:
        found = zip(structure.flatten_up_to(new), pairs, strict=True)
        return structure.unflatten([back(x) for x, (_, back) in found])

    return structure.unflatten([x for x, _ in pairs]), restored


class _Rows(NamedTuple):
    """The real matrices of a stack in slots.

    Attributes:
        places: Their places in the whole stack, those of full rounds first.
        own: Which owners have matrices of the last round.
    """

    places: np.ndarray
    own: np.ndarray


def _compact(node: OnMatricesState) -> tuple[Any, Callable[[Any], Any]]:
    """One state, and those inside of it."""
    inside = {name: compact(getattr(node, name)) for name in _INSIDE}
    own, rebox = unboxed(node._replace(after=None, other=None))
    rows = _rows_of(own)

    def restored(new: Any) -> Any:
        held = {name: back(getattr(new, name)) for name, (_, back) in inside.items()}
        alone = _in_slots(new._replace(after=None, other=None), own, rows)
        return rebox(alone)._replace(**held)

    new = {name: new for name, (new, _) in inside.items()}
    return _without_slots(own, rows)._replace(**new), restored


def _rows_of(state: OnMatricesState) -> dict[str, _Rows]:
    found: dict[str, _Rows] = {}
    for keys, slot, _ in slots_in(state):
        name, owners = stack_of(state, keys), len(state.slots[slot.key])
        if name not in found:
            manifest, last = on_host(state.manifest[name]), slot.shape[0]
            own = owns_last(manifest, owners, last)
            places = np.arange(len(manifest)).reshape(owners, -1)
            parts = places[:, :-last].ravel(), places[own, -last:].ravel()
            found[name] = _Rows(np.concatenate(parts), own)
    return found


def _without_slots(state: OnMatricesState, rows: Mapping[str, _Rows]) -> Any:
    slots = {key: on_host(x) for key, x in (state.slots or {}).items()}

    def of_leaf(keys: tuple, node: Any) -> Any:
        if (at := _rows_in(keys, rows)) is None:
            return node
        if (slot := slot_of(node)) is not None:
            check_slot(node)
            last = slots[slot.key][at.own, : slot.size]
            last, kept = last.reshape(-1, *slot.shape[1:]), kept_rounds(node)
            return last if kept is None else np.concatenate([on_host(kept), last])
        if not jnp.ndim(node):
            return node
        is_key = jnp.issubdtype(node.dtype, dtypes.prng_key)
        return node[at.places] if is_key else on_host(node)[at.places]

    return map_with_keys(of_leaf, state._replace(slots=None), is_leaf=is_slot)


def _in_slots(new: Any, old: Any, rows: Mapping[str, _Rows]) -> Any:
    slots = {key: np.array(on_host(x)) for key, x in (old.slots or {}).items()}

    def of_leaf(keys: tuple, node: Any, leaf: Any) -> Any:
        if (at := _rows_in(keys, rows)) is None:
            return leaf
        if (slot := slot_of(node)) is not None:
            return _stored(slot, node, np.asarray(leaf), at, slots)
        if not jnp.ndim(node):
            return leaf
        if jnp.issubdtype(node.dtype, dtypes.prng_key):
            return node.at[at.places].set(leaf)
        whole = np.array(on_host(node))
        whole[at.places] = leaf
        return _like(node, whole)

    whole = map_with_keys(of_leaf, old._replace(slots=None), new, is_leaf=is_slot)
    placed = {key: _like(old.slots[key], x) for key, x in slots.items()}
    return whole._replace(slots=placed or old.slots)


def _stored(
    slot: Slot, node: Any, leaf: np.ndarray, at: _Rows, slots: dict[str, np.ndarray]
) -> Any:
    """The node of a leaf, whose last round goes into its slot."""
    owners = int(at.own.sum())
    full = len(leaf) - owners * slot.shape[0]
    slots[slot.key][at.own, : slot.size] = leaf[full:].reshape(owners, -1)
    kept = kept_rounds(node)
    return node if kept is None else {slot.label: _like(kept, leaf[:full])}


def _rows_in(keys: tuple, rows: Mapping[str, _Rows]) -> _Rows | None:
    """The matrices of the stack in slots to which a leaf belongs."""
    return next((rows[n] for n in map(key_name, keys) if n in rows), None)


def _like(old: Any, new: np.ndarray) -> Any:
    """An array in the place of another one."""
    if not isinstance(old, jax.Array):
        return new
    return spread(old, new.__getitem__) if old.committed else jnp.asarray(new)
