"""Whether the arrays of a state can be what their fields are, from the state alone."""

from typing import Any

import jax
import numpy as np
from jax.tree_util import GetAttrKey

from optax_matrix._paths import path_name
from optax_matrix.checkpoint._kinds import check_signs, kind_of
from optax_matrix.checkpoint._known import known_leaves
from optax_matrix.checkpoint._packed import as_plain, quantized_nodes
from optax_matrix.tree.state import states_in


def check_fields(state: Any) -> None:
    """Raises if an array holds what its field never does.

    That is known of the fields of this package, and of moments and counts of optax.
    """
    owners = [(*keys, GetAttrKey("inner_state")) for keys, _ in states_in(state)]
    packed_nodes = dict(quantized_nodes(state))
    for leaf in known_leaves(state):
        if not hasattr(leaf.value, "dtype"):
            continue
        of_matrices = any(leaf.keys[: len(keys)] == keys for keys in owners)
        _, packed = as_plain(leaf.keys, packed_nodes)
        place, kind = path_name(leaf.keys), leaf.kind
        kind = "integers" if packed is not None and packed.codes else kind
        wanted = {kind}
        if kind == "real numbers" and not of_matrices:
            wanted.add("complex numbers")
        if kind and (got := kind_of(leaf.value.dtype)) not in wanted:
            raise ValueError(
                f"`state` must hold {kind} in {place}, got {got}: it was "
                "restored into another structure, or it was written by another version "
                "of optax_matrix; restore with tx.init(params) as the target."
            )
        if leaf.is_unsigned and packed is None:
            for part in _parts(leaf.value):
                check_signs(part, place, "state")


def _parts(leaf: Any) -> list[np.ndarray]:
    """What this process holds of an array, each part once."""
    if not isinstance(leaf, jax.Array):
        return [np.asarray(leaf)]
    shards = leaf.addressable_shards
    return [np.asarray(shard.data) for shard in shards if shard.replica_id == 0]
