"""Whether what a state calls moments and counts can be such, from the state alone."""

from typing import Any

import jax
import numpy as np
from jax.tree_util import GetAttrKey

from optax_matrix._paths import leaves_with_keys, path_name
from optax_matrix.checkpoint._kinds import check_signs, kind_of
from optax_matrix.checkpoint._packed import as_plain, quantized_nodes
from optax_matrix.transforms.wrappers.quantizer import SIGNED, UNSIGNED
from optax_matrix.tree.state import states_in

_MOMENTS = (*SIGNED, *UNSIGNED)


def check_moments(state: Any) -> None:
    """Raises if a moment or a count holds what it never does.

    The states of other optimizers may have fields of these names for parameters of
    theirs, so only the outermost one counts there.
    """
    owners = [(*keys, GetAttrKey("inner_state")) for keys, _ in states_in(state)]
    packed_nodes = dict(quantized_nodes(state))
    for at, leaf in leaves_with_keys(state):
        if not hasattr(leaf, "dtype"):
            continue
        of_matrices = any(at[: len(keys)] == keys for keys in owners)
        keys, packed = as_plain(at, packed_nodes)
        field, place = _field(keys, of_matrices), path_name(at)
        wanted = {"integers"} if field == "count" else {"real numbers"}
        if field in _MOMENTS and not of_matrices:
            wanted.add("complex numbers")
        if packed is not None and packed.codes:
            wanted = {"integers"}
        if field and (got := kind_of(leaf.dtype)) not in wanted:
            raise ValueError(
                f"`state` must hold {sorted(wanted)[-1]} in {place}, got {got}: it was "
                "restored into another structure, or it was written by another version "
                "of optax_matrix; restore with tx.init(params) as the target."
            )
        if field in UNSIGNED and packed is None:
            for part in _parts(leaf):
                check_signs(part, field, of_matrices, place, "state")


def _field(keys: tuple, of_matrices: bool) -> str | None:
    """The field of a moment or a count that a leaf belongs to, if it is known."""
    fields = [key.name for key in keys if isinstance(key, GetAttrKey)]
    if of_matrices:
        last = fields[-1] if fields else None
        return last if last in (*_MOMENTS, "count") else None
    moment = next((name for name in fields if name in _MOMENTS), None)
    is_count = bool(keys) and keys[-1] == GetAttrKey("count")
    return "count" if moment is None and is_count else moment


def _parts(leaf: Any) -> list[np.ndarray]:
    """What this process holds of an array."""
    if not isinstance(leaf, jax.Array):
        return [np.asarray(leaf)]
    return [np.asarray(shard.data) for shard in leaf.addressable_shards]
