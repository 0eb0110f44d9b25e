"""State that a block lets matrices keep, before it uses it.

Matrices whose gradients have no effect keep their state. `on_matrices` sees to that at
the end of a step, for any block. But a large array that the step itself uses is then
written twice: as computed, and as kept. A block that keeps it at once, with `kept`,
saves that. Nothing else changes, since the updates of these matrices are thrown away.
"""

from typing import Any

import jax
import jax.numpy as jnp

from optax_matrix._surroundings import Stacks, here


def where(matrices: jax.Array, value: Any, x: jax.Array) -> jax.Array:
    """Replaces some matrices of a stack, ``(b,)``, by a value in its dtype."""
    each = matrices.reshape(matrices.shape + (1,) * (x.ndim - 1))
    return jnp.where(each, jnp.asarray(value).astype(x.dtype), x)


def kept(new: Any, old: Any) -> Any:
    """The new state, but the old one of matrices that keep theirs."""

    def of(path: Any, after: jax.Array, before: jax.Array) -> jax.Array:
        keeps = mask_of(here().keeps, path, after)
        if keeps is None or after.dtype != before.dtype:
            return after
        return _noted(where(keeps, before, after), before)

    return jax.tree_util.tree_map_with_path(of, new, old)


def movable(due: Any) -> Any:
    """Which matrices change, of those ``(b,)`` that are due: they keep no state."""

    def of(path: Any, due: jax.Array) -> jax.Array:
        keeps = mask_of(here().keeps, path, due)
        return due if keeps is None else where(keeps, False, due)

    return jax.tree_util.tree_map_with_path(of, due)


def note_kept(new: Any, old: Any) -> None:
    """Says that matrices keep their state already, which `movable` has seen to."""
    jax.tree.map(_noted, new, old)


def _noted(new: jax.Array, old: jax.Array) -> jax.Array:
    if (pairs := here().kept) is not None:
        pairs.append((new, old))
    return new


def mask_of(masks: Stacks, path: Any, x: jax.Array) -> jax.Array | None:
    """The mask of the stack that an array belongs to, by its path in a tree."""
    names = [key.key for key in path if isinstance(key, jax.tree_util.DictKey)]
    of_group = next((name for name in names if name in masks), None)
    if of_group is None or jnp.shape(x)[:1] != jnp.shape(masks[of_group]):
        return None
    return masks[of_group]
