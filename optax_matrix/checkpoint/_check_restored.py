"""Checks of a state that was restored by other means than `from_portable`."""

from typing import Any

import jax
import numpy as np
import optax
from jax.tree_util import GetAttrKey

from optax_matrix._paths import path_name
from optax_matrix.checkpoint._entries import check_values
from optax_matrix.checkpoint._kinds import check_signs, kind_of
from optax_matrix.checkpoint._known import known_leaves
from optax_matrix.checkpoint._packed import as_plain, quantized_nodes
from optax_matrix.checkpoint.compacting import compact
from optax_matrix.checkpoint.gathering import on_host
from optax_matrix.stacks.identities import checksum
from optax_matrix.tree.holders import check_tuples
from optax_matrix.tree.state import check_position, states_in


def check_restored(state: optax.OptState) -> None:
    """Checks that the stacks of a restored state hold the matrices of their names.

    A restore by position instead of by name can give one layer the momentum of another;
    then names and contents disagree. Call this after restoring a checkpoint by any
    other means than `from_portable`.

    Args:
        state: A restored optimizer state with concrete arrays, of one run or of several
            (`jax.vmap`), or what holds it as ``opt_state`` (``nnx.Optimizer``, Linen's
            ``TrainState``).

    Raises:
        ValueError: If a stack holds other matrices than those of its name, or was made
            for another side; if arrays hold another kind of number than their fields
            do, or second moments negative ones; if there is no state of `on_matrices`,
            or if the state is traced.

    Examples:
        >>> import jax.numpy as jnp, optax
        >>> from optax_matrix import on_matrices
        >>> check_restored(on_matrices(optax.trace(0.9)).init({"up": jnp.ones((3, 5))}))
    """
    check_tuples(state, "state")
    check_values(state, "state")
    states = list(states_in(state))
    if not states:
        raise ValueError(
            "`state` must hold a state of `on_matrices`, got "
            f"{type(state).__name__} without one; restore with tx.init(params) as the "
            "target, since without a target all nodes are dicts."
        )
    for _, node in states:
        check_position(node)
        for name, leaf in node.manifest.items():
            rows = on_host(jax.tree.leaves(leaf)[0])
            runs = rows.reshape(-1, *rows.shape[-2:])
            if not all(name.endswith(f"@{checksum(run):08x}") for run in runs):
                raise ValueError(
                    f"`state` must hold in stack {name!r} the matrices that it is "
                    "named after, but holds others: it was restored by position from "
                    "the state of other parameters; save optax_matrix.to_portable("
                    "state, params) and restore by from_portable(..., rename=...)."
                )
    _check_fields(compact(state)[0])


def _check_fields(state: Any) -> None:
    """Raises if an array holds another kind of number than its field can.

    The kinds are known for fields of this package, and for moments and counts of optax.
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
    """The parts of an array on devices of this process, each part once."""
    if not isinstance(leaf, jax.Array):
        return [np.asarray(leaf)]
    shards = leaf.addressable_shards
    return [np.asarray(shard.data) for shard in shards if shard.replica_id == 0]
