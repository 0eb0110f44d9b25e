"""What a block asks of the layout of its stacks: who its matrices are, their sides.

A block is made once, before any parameters are known. What depends on them it asks for
where the step runs. Inside `on_matrices` that is the layout of the matrices that this
device has; elsewhere no layout is known.
"""

from typing import Any

import jax
import jax.numpy as jnp

from optax_matrix._surroundings import here


def identities_of(tree: Any) -> Any:
    """Per leaf the identities of its matrices, uint32 ``(..., k)``; None if unknown.

    They are `stacks.Group.ids`, found by the name of the stack that the leaf is in, and
    the same for all blocks of a matrix. Random numbers that depend on them are the same
    however matrices are grouped and placed. Inside `per_matrix` they are unknown.
    """
    if (layout := here().layout) is None:
        return None
    known, paths = layout.ids, jax.tree.leaves_with_path(tree)
    found = [_of_leaf(known, keys, x) for keys, x in paths]
    if any(ids is None for ids in found):
        return None
    return jax.tree.unflatten(jax.tree.structure(tree), found)


def _of_leaf(known: Any, keys: Any, x: jax.Array) -> Any:
    names = [getattr(key, "key", None) for key in keys]
    ids = next((known[name] for name in names if name in known), None)
    if ids is None or x.shape[:1] != ids.shape[:1]:
        return None
    inside = x.shape[1:-2]  # Axes of blocks.
    if not inside:
        return ids
    ids = ids.reshape(len(ids), *(1 for _ in inside), -1)
    return jnp.broadcast_to(ids, (len(ids), *inside, ids.shape[-1]))


def of_layout(name: str, value: Any) -> Any:
    """An argument of a block as it is, or as its function of the layout returns it."""
    if not callable(value):
        return value
    if (layout := here().layout) is None:
        raise ValueError(
            f"`{name}` must not be a function of the layout outside of `on_matrices`, "
            "where no layout is known; pass its value, or run the block in "
            "`on_matrices`."
        )
    return value(layout)
