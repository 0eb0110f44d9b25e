"""What a merge sets back in the state of an inner transformation."""

from typing import Any

import jax
from jax.tree_util import GetAttrKey


def reset_moments(fresh: Any, state: Any, q: Any) -> Any:
    """Sets back moments and the counts beside them, for a merge.

    A named tuple that holds something for the leaves of ``q`` is set back as a whole,
    as Adam's with its count; what stands alone, as the count of a schedule or injected
    hyperparameters, goes on.

    Args:
        fresh: The state as `init` makes it.
        state: The state.
        q: The tree that the inner transformation works on.

    Returns:
        The state.
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
    """Where in a place the path of a leaf of Q begins, if it is there."""
    lengths = {len(path) for path in paths}
    starts = range(len(place))
    return next((i for i in starts for n in lengths if place[i : i + n] in paths), None)


def _owner(keys: tuple) -> tuple:
    """The place of the named tuple, or else of the container, that a leaf is in."""
    fields = [i for i, key in enumerate(keys) if isinstance(key, GetAttrKey)]
    return keys[: fields[-1]] if fields else keys
