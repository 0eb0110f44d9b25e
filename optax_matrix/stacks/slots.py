"""State of several stacks in one array: a slot for each owner.

After its full rounds a stack has fewer matrices left than there are owners, yet its
state would have a place for one on each of them. Stacks whose last matrices have
different owners (a pool) therefore share slots. In such a state

* ``slots`` has arrays ``(owners, size)``, of which each owner has one row: the state of
  its matrix, of whichever stack, padded to the largest;
* a leaf of ``inner_state`` in slots is a dict with one entry. The key is its `Slot`,
  the value the state of the full rounds; without full rounds the checksum of the key.

All functions work on whole arrays as on those of one device, which has one row.
"""

import re
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from optax_matrix._paths import key_name, leaves_with_keys, map_with_keys
from optax_matrix.stacks.identities import FILLER

_LABEL = re.compile(r"slot_(\d+)_(\d+)_(.+)_(\d+(?:x\d+)*)")


class Slot(NamedTuple):
    """Where the last round of a leaf of state is.

    Attributes:
        pool: The number of the pool.
        place: The leaf's rank by size among those of its stack and dtype.
        dtype: The name of its dtype.
        shape: What an owner has in the last round, ``(matrices, ...)``.
    """

    pool: int
    place: int
    dtype: str
    shape: tuple[int, ...]

    @property
    def label(self) -> str:
        """The key of the leaf, such as ``slot_0_0_float32_1x64x32``."""
        return f"slot_{self.key}_{'x'.join(map(str, self.shape))}"

    @property
    def key(self) -> str:
        """The key of its array in ``slots``."""
        return f"{self.pool}_{self.place}_{self.dtype}"

    @property
    def size(self) -> int:
        """Numbers of an owner."""
        return int(np.prod(self.shape))

    @property
    def checksum(self) -> np.ndarray:
        """The value of a leaf without full rounds, uint32 ``()``."""
        return np.asarray(zlib.crc32(self.label.encode()), np.uint32)


def slot_named(key: Any) -> Slot | None:
    """The slot of a key in a state; None if it is another key."""
    found = _LABEL.fullmatch(key_name(key))
    if found is None:
        return None
    pool, place, dtype, shape = found.groups()
    return Slot(int(pool), int(place), dtype, tuple(map(int, shape.split("x"))))


def slot_of(node: Any) -> Slot | None:
    """The slot of a node of a state; None if it is no leaf in slots."""
    if not isinstance(node, dict) or len(node) != 1:
        return None
    return slot_named(jax.tree_util.DictKey(next(iter(node))))


def in_slots(state: Any) -> bool:
    """Whether leaves of a state of `on_matrices` are in slots."""
    return bool(state.slots)


def slots_in(state: Any) -> Iterator[tuple[tuple, Slot, Any]]:
    """Every leaf in slots: its keys in ``inner_state``, its slot and its full rounds.

    The last is None if there are none.
    """
    for keys, node in leaves_with_keys(state.inner_state, is_slot):
        if (slot := slot_of(node)) is not None:
            yield keys, slot, kept_rounds(node)


def unpooled(state: Any, fresh: Any = None) -> Any:
    """The state with whole stacks.

    Padding has the values of the inner state `fresh`, whose stacks are last rounds;
    without it arbitrary ones.
    """
    if not in_slots(state):
        return state
    given = {} if fresh is None else dict(leaves_with_keys(fresh))

    def restore(keys: tuple, node: Any) -> Any:
        if (slot := slot_of(node)) is None:
            return node
        rows = state.slots[slot.key]
        last = rows[:, : slot.size].reshape(len(rows), *slot.shape)
        if fresh is not None:
            own = _owns(state, keys, slot, len(rows))
            own = own.reshape(-1, *[1] * len(slot.shape))
            last = jnp.where(own, last, given[keys].reshape(last.shape))
        if (kept := kept_rounds(node)) is not None:
            kept = kept.reshape(len(rows), -1, *slot.shape[1:])
            last = jnp.concatenate([kept, last], axis=1)
        return last.reshape(-1, *slot.shape[1:])

    inner = map_with_keys(restore, state.inner_state, is_leaf=is_slot)
    return state._replace(inner_state=inner, slots=None)


def pooled_like(new: Any, old: Any) -> Any:
    """A state with whole stacks in the slots that an old one has."""
    if not in_slots(old):
        return new
    slots = dict(old.slots)

    def store(keys: tuple, node: Any, leaf: Any) -> Any:
        if (slot := slot_of(node)) is None:
            return leaf
        rows = slots[slot.key]
        leaf = leaf.reshape(len(rows), -1, *slot.shape[1:])
        last = leaf[:, -slot.shape[0] :].reshape(len(rows), -1)
        # What is behind the numbers of a smaller matrix does not matter.
        last = jnp.concatenate([last, rows[:, slot.size :]], axis=1)
        own = _owns(old, keys, slot, len(rows)).reshape(-1, 1)
        slots[slot.key] = jnp.where(own, last, rows)
        if kept_rounds(node) is None:
            return node
        kept = leaf[:, : -slot.shape[0]]
        return {slot.label: kept.reshape(-1, *slot.shape[1:])}

    inner = map_with_keys(store, old.inner_state, new.inner_state, is_leaf=is_slot)
    return new._replace(inner_state=inner, slots=slots)


def whole_shapes(state: Any) -> Any:
    """A state with the shapes and dtypes of whole stacks for those in slots."""
    if not in_slots(state):
        return state

    def restore(keys: tuple, node: Any) -> Any:
        if (slot := slot_of(node)) is None:
            return node
        count = len(state.manifest[stack_of(state, keys)])
        return jax.ShapeDtypeStruct((count, *slot.shape[1:]), jnp.dtype(slot.dtype))

    inner = map_with_keys(restore, state.inner_state, is_leaf=is_slot)
    return state._replace(inner_state=inner, slots=None)


def map_states(f: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """A tree with ``f(state, ...)`` in place of each state of `on_matrices`."""
    is_one = lambda node: hasattr(node, "manifest") and hasattr(node, "slots")

    def of_node(node: Any, *rest: Any) -> Any:
        if not is_one(node):
            return node
        parts = lambda name: [getattr(x, name) for x in (node, *rest)]
        inside = {n: map_states(f, *parts(n)) for n in ("after", "other")}
        return f(node, *rest)._replace(**inside)

    return jax.tree.map(of_node, tree, *others, is_leaf=is_one)


def stack_of(state: Any, keys: tuple) -> str:
    """The stack whose state a leaf is."""
    return next(name for name in map(key_name, keys) if name in state.manifest)


def owns_last(manifest: Any, owners: int, last: int) -> Any:
    """Which owners have matrices among the `last` places of each."""
    ids = manifest.reshape(owners, -1, manifest.shape[-1])[:, -last:, :2]
    return (ids != np.array(FILLER, np.uint32)).any((1, 2))


def is_slot(node: Any) -> bool:
    """Whether a node of a state is a leaf in slots."""
    return slot_of(node) is not None


def kept_rounds(node: Any) -> Any:
    """The full rounds of a leaf in slots; None if there are none."""
    (kept,) = node.values()
    return kept if len(kept.shape) > 0 else None


def check_slot(node: Any) -> None:
    """Raises if a leaf without full rounds was restored by position."""
    ((label, value),) = node.items()
    slot: Any = slot_of(node)
    if not value.shape and np.asarray(value) != slot.checksum:
        raise ValueError(
            f"`state` has a slot {label!r} with the number of another one, so it was "
            "restored by position; save optax_matrix.to_portable(state, params) and "
            "restore by from_portable, or restore with tx.init(params) as the target."
        )


def _owns(state: Any, keys: tuple, slot: Slot, owners: int) -> Any:
    manifest = state.manifest[stack_of(state, keys)]
    return owns_last(manifest, owners, slot.shape[0])
