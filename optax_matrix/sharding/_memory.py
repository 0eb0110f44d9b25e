"""State in the memory of the host between steps."""

from collections.abc import Mapping
from typing import Any, Literal

import jax

from optax_matrix._paths import group_of, key_name, map_with_keys
from optax_matrix.sharding._stack_specs import is_sharded
from optax_matrix.stacks.slots import slot_named

Memory = Literal["device", "pinned_host"]


def check_memory(value: Any) -> None:
    """Raises unless a value is the name of a memory."""
    if value not in ("device", "pinned_host"):
        raise ValueError(
            f"`memory` must be 'device' or 'pinned_host', got {value!r}; it says where "
            "the state of matrices lies between steps."
        )


def fetched(memory: Memory, state: Any, groups: Mapping[str, Any]) -> Any:
    """A state on the device, as a step reads it."""
    return _moved(memory, state, groups, jax.memory.Space.Device)


def stored(memory: Memory, state: Any, groups: Mapping[str, Any]) -> Any:
    """A state in its memory: what is per matrix there, and counts on the device."""
    return _moved(memory, state, groups, jax.memory.Space.Host)


def _moved(memory: Memory, state: Any, groups: Mapping[str, Any], space: Any) -> Any:
    if memory == "device":
        return state

    def of_leaf(keys: tuple, x: Any) -> Any:
        group = group_of(keys, groups)
        if slot_named(keys[-1]) or key_name(keys[0]) == "slots":
            is_large = bool(x.shape)  # Not a checksum.
        else:
            is_large = group is not None and is_sharded(keys, x, group)
        return jax.device_put(x, space) if is_large else x

    return map_with_keys(of_leaf, state)
