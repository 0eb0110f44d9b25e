"""Restores the state of skipped matrices before a block reads it.

A matrix whose gradient has no effect keeps its state. `on_matrices` restores it at the
end of a step, for any block. But a large array that the step itself reads is then
written twice: as computed, and as restored. A block that restores it at once, with
`kept`, saves one of them. Nothing else changes, since the updates of these matrices are
discarded.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from optax_matrix._surroundings import Stacks, here


def select(which: jax.Array, new: Any, old: jax.Array) -> jax.Array:
    """New values for some matrices ``(...)`` of an array, in its dtype; else the old.

    ``new`` is an array or a number.
    """
    each = which.reshape(which.shape + (1,) * (old.ndim - which.ndim))
    return jnp.where(each, jnp.asarray(new).astype(old.dtype), old)


def kept(new: Any, old: Any) -> Any:
    """The new state, but the old one of matrices that keep theirs."""

    def of(path: Any, after: jax.Array, before: jax.Array) -> jax.Array:
        if after.dtype != before.dtype:
            return after
        held = _put_back(here().keeps, path, after, before)
        return held if held is after else _noted(held, before)

    return jax.tree_util.tree_map_with_path(of, new, old)


def movable(due: Any) -> Any:
    """Which matrices change, of those ``(b, ...)`` that are due: they keep no state."""
    of = lambda path, x: _put_back(here().keeps, path, x, False)
    return jax.tree_util.tree_map_with_path(of, due)


def settled(
    keeps: Sequence[Stacks], pairs: list[tuple[Any, Any]], state: Any, old: Any
) -> Any:
    """The state after a step, in which some matrices keep theirs.

    ``pairs`` are arrays, new and old, in which they do already.
    """

    def of(path: Any, after: Any, before: Any) -> Any:
        done = any(after is x and before is y for x, y in pairs)
        return after if done else _put_back(keeps, path, after, before)

    return jax.tree_util.tree_map_with_path(of, state, old) if keeps else state


def note_kept(new: Any, old: Any) -> None:
    """Says that matrices keep their state already, which `movable` has seen to."""
    jax.tree.map(_noted, new, old)


def _noted(new: jax.Array, old: jax.Array) -> jax.Array:
    if (pairs := here().kept) is not None:
        pairs.append((new, old))
    return new


def _put_back(
    keeps: Sequence[Stacks], path: Any, new: jax.Array, old: Any
) -> jax.Array:
    """An array of state by its path; the old values of matrices that keep theirs."""
    names = [key.key for key in path if isinstance(key, jax.tree_util.DictKey)]
    # One mask after the other: on a CPU, the union of them would round otherwise.
    for masks in keeps:
        mask = next((masks[name] for name in names if name in masks), None)
        if mask is not None and jnp.shape(new)[:1] == mask.shape:
            new = select(mask, old, new)
    return new
