"""Resetting the moments of an inner transformation at a merge."""

from typing import Any

import jax
from jax.tree_util import GetAttrKey


def reset_moments(fresh: Any, state: Any, q: Any) -> Any:
    """Resets moments, and the counts stored with them, at a merge.

    A named tuple with a field that mirrors ``q`` is reset as a whole: Adam's, for
    example, together with its count. All other state, such as the count of a schedule
    or injected hyperparameters, is kept.

    Args:
        fresh: The state as `init` returns it.
        state: The current state.
        q: The tree that the inner transformation works on.

    Returns:
        The state after the reset.
    """
    paths = {keys for keys, _ in jax.tree.leaves_with_path(q)}
    places = [keys for keys, _ in jax.tree.leaves_with_path(state)]
    ends = [_start(place, paths) for place in places]
    owners = [_owner(p[:end]) for p, end in zip(places, ends, strict=True)]
    reset = {o for o, end in zip(owners, ends, strict=True) if end is not None}
    pairs = zip(jax.tree.leaves(fresh), jax.tree.leaves(state), owners, strict=True)
    leaves = [new if owner in reset else old for new, old, owner in pairs]
    return jax.tree.unflatten(jax.tree.structure(state), leaves)


def _start(place: tuple, paths: set[tuple]) -> int | None:
    """The index in ``place`` at which the path of a leaf of Q begins, or None."""
    lengths = {len(path) for path in paths}
    starts = range(len(place))
    return next((i for i in starts for n in lengths if place[i : i + n] in paths), None)


def _owner(keys: tuple) -> tuple:
    """The path of the named tuple that contains a leaf; its own path without one."""
    fields = [i for i, key in enumerate(keys) if isinstance(key, GetAttrKey)]
    return keys[: fields[-1]] if fields else keys
