"""Whether the arrays of a state can be what their fields are, from the state alone."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.tree_util import GetAttrKey

from optax_matrix._paths import leaves_with_keys, path_name
from optax_matrix.checkpoint._kinds import check_signs, kind_of
from optax_matrix.checkpoint._packed import as_plain, quantized_nodes
from optax_matrix.transforms.wrappers.quantizer import SIGNED, UNSIGNED
from optax_matrix.tree.state import states_in

_MOMENTS = {*SIGNED, *UNSIGNED}
# Of this package's blocks; all else that they keep of matrices are real numbers.
_INTEGERS = {"count", "merges", "perms", "applied"}


class _Leaf(NamedTuple):
    """A leaf, and the innermost named tuple and field that it is in."""

    keys: tuple
    value: Any
    node: type
    field: str


def check_fields(state: Any) -> None:
    """Raises if an array holds what its field never does.

    That is known of the fields of this package, and of moments and counts anywhere. The
    states of other optimizers may have fields of these names for parameters of theirs,
    so only the outermost one counts there.
    """
    owners = [(*keys, GetAttrKey("inner_state")) for keys, _ in states_in(state)]
    packed_nodes = dict(quantized_nodes(state))
    for leaf in _leaves(state):
        if not hasattr(leaf.value, "dtype"):
            continue
        of_matrices = any(leaf.keys[: len(keys)] == keys for keys in owners)
        keys, packed = as_plain(leaf.keys, packed_nodes)
        field, place = _field(leaf, keys, of_matrices), path_name(leaf.keys)
        wanted = {"integers"} if field in _INTEGERS else {"real numbers"}
        if field in _MOMENTS and not of_matrices:
            wanted.add("complex numbers")
        if packed is not None and packed.codes:
            wanted = {"integers"}
        if field and (got := kind_of(leaf.value.dtype)) not in wanted:
            raise ValueError(
                f"`state` must hold {sorted(wanted)[-1]} in {place}, got {got}: it was "
                "restored into another structure, or it was written by another version "
                "of optax_matrix; restore with tx.init(params) as the target."
            )
        if field in UNSIGNED and packed is None:
            for part in _parts(leaf.value):
                check_signs(part, field, of_matrices, place, "state")


def _leaves(
    tree: Any, above: tuple = (), node: type = tuple, field: str = ""
) -> Iterator[_Leaf]:
    is_node = lambda x: isinstance(x, tuple) and hasattr(x, "_fields")
    for keys, part in leaves_with_keys(tree, is_node):
        if not is_node(part):
            yield _Leaf(above + keys, part, node, field)
            continue
        for name, inside in zip(part._fields, part, strict=True):
            at = (*above, *keys, GetAttrKey(name))
            yield from _leaves(inside, at, type(part), name)


def _field(leaf: _Leaf, keys: tuple, of_matrices: bool) -> str | None:
    """The field of a leaf, if it is known what that holds."""
    if of_matrices:
        ours = leaf.node.__module__.startswith("optax_matrix.")
        return leaf.field if ours or leaf.field in {*_MOMENTS, "count"} else None
    fields = [key.name for key in keys if isinstance(key, GetAttrKey)]
    moment = next((name for name in fields if name in _MOMENTS), None)
    is_count = bool(keys) and keys[-1] == GetAttrKey("count")
    return "count" if moment is None and is_count else moment


def _parts(leaf: Any) -> list[np.ndarray]:
    """What this process holds of an array."""
    if not isinstance(leaf, jax.Array):
        return [np.asarray(leaf)]
    return [np.asarray(shard.data) for shard in leaf.addressable_shards]
