"""Resetting the moments of an inner transformation at a merge."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import GetAttrKey


def reset_moments(fresh: Any, state: Any, due: Any, every: Any) -> Any:
    """Resets moments, and the counts stored with them, at a merge.

    A named tuple with a field that mirrors Q is reset: Adam's moments, for example,
    together with its counts. If each array in it has the batch axes of a stack
    (`scale_by_adam_per_matrix`), each matrix is reset by itself. Otherwise (the one
    count of `optax.adam`) the tuple is reset as a whole at a merge of all matrices
    (``merge_interval``), and is kept at others: a reset would leave the moments of the
    other matrices with a wrong correction of the bias. All other state, such as the
    count of a schedule or injected hyperparameters, is kept.

    Args:
        fresh: The state as `init` returns it.
        state: The current state.
        due: For each leaf of Q, which matrices of its stack are merged, ``(...)``.
        every: Whether all matrices are merged, on every device.

    Returns:
        The state after the reset.
    """
    of_matrices = dict(jax.tree.leaves_with_path(due))
    pairs = jax.tree.leaves_with_path(state)
    found = [_stack(keys, x, of_matrices) for keys, x in pairs]
    owners = [
        _owner(keys[:end]) for (keys, _), (end, _) in zip(pairs, found, strict=True)
    ]
    resets = {o for o, (end, _) in zip(owners, found, strict=True) if end is not None}
    whole = {o for o, (_, which) in zip(owners, found, strict=True) if which is None}

    def renewed(new, old, owner, which):
        if owner not in resets:
            return old
        if owner in whole:
            return jnp.where(every, new, old)
        return where_due(which, new, old)

    rows = zip(jax.tree.leaves(fresh), pairs, owners, found, strict=True)
    leaves = [renewed(new, old, owner, w) for new, (_, old), owner, (_, w) in rows]
    return jax.tree.unflatten(jax.tree.structure(state), leaves)


def where_due(due: jax.Array, new: jax.Array | float, old: jax.Array) -> jax.Array:
    """New values for the matrices that are due, the old ones for the others.

    Args:
        due: Which matrices are due, ``(...)``.
        new: New values.
        old: Old values, an array with the axes of ``due`` in front.

    Returns:
        An array like ``old``.
    """
    return jnp.where(due.reshape(due.shape + (1,) * (old.ndim - due.ndim)), new, old)


def _stack(keys: tuple, x: jax.Array, due: dict[tuple, jax.Array]) -> tuple[Any, Any]:
    """Where the path of a leaf of Q begins in a path, and which matrices are due.

    Both are None for an array that mirrors no leaf, the latter also for an array
    without the batch axes.
    """
    lengths = {len(path) for path in due}
    for i in range(len(keys)):
        for n in lengths:
            if (which := due.get(keys[i : i + n])) is not None:
                is_batched = x.shape[: which.ndim] == which.shape
                return i, which if is_batched else None
    return None, None


def _owner(keys: tuple) -> tuple:
    """The path of the named tuple that contains a leaf; its own path without one."""
    fields = [i for i, key in enumerate(keys) if isinstance(key, GetAttrKey)]
    return keys[: fields[-1]] if fields else keys
