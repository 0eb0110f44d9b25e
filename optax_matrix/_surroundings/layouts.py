"""What a block asks of the layout of its stacks: who its matrices are, their sides.

A block is made once, before any parameters are known. What depends on them it asks for
where the step runs. Inside `on_matrices` that is the layout of the matrices that this
device has; elsewhere no layout is known.
"""

from collections.abc import Mapping
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


def pairs_here() -> dict[str, str]:
    """For each stack of matrices that are the first of a pair that of their partners.

    Raises where no layout is known.
    """
    if (layout := here().layout) is None:
        raise ValueError(
            "`pairs` must be known, so that a block sees partners: run it in "
            "om.on_matrices(block, pairs={'lora_a': 'lora_b'})."
        )
    return dict(layout.partners)


def partners_of(stacks: Mapping[str, Any]) -> dict[str, Any]:
    """For each stack that of its matrices' partners, in the same order.

    The partners of a matrix are those of the argument ``pairs`` of `on_matrices`. All
    that is kept by stack has partners: gradients, momenta, parameters, state.

    Args:
        stacks: Stacks by name.

    Returns:
        What the partners' stacks hold; stacks without partners are left out.

    Raises:
        ValueError: If there is no `on_matrices` around.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax, optax_matrix as om
        >>> swapped = optax.stateless(lambda g, _: om.transforms.partners_of(g))
        >>> tx = om.on_matrices(swapped, pairs={"key": "query"})
        >>> grads = {"key": jnp.ones((2, 3)), "query": jnp.full((2, 3), 5.0)}
        >>> tx.update(grads, tx.init(grads))[0]["key"].tolist()
        [[5.0, 5.0, 5.0], [5.0, 5.0, 5.0]]
    """
    pairs = pairs_here()
    both = pairs | {second: first for first, second in pairs.items()}
    if not isinstance(stacks, Mapping):
        raise ValueError(
            "`stacks` must be a dict of stacks by name, as a block in `on_matrices` "
            f"gets it, got {type(stacks).__name__}; inside `per_matrix` partners are "
            "unknown."
        )
    return {name: stacks[both[name]] for name in stacks if both.get(name) in stacks}
