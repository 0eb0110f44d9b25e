"""The arrays of a tree that may hold other things, too."""

from collections.abc import Callable
from typing import Any

import jax


def split_arrays(tree: Any) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """The arrays of a tree, and the function that puts arrays back into it.

    Arrays may be traced: they must go through a `shard_map` as arguments. Numbers stay
    Python numbers, so that they do not promote the dtype of an array.
    """
    leaves, structure = jax.tree.flatten(tree)
    at = [i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]

    def join(arrays: list[Any]) -> Any:
        new = dict(zip(at, arrays, strict=True))
        whole = [new.get(i, leaf) for i, leaf in enumerate(leaves)]
        return jax.tree.unflatten(structure, whole)

    return [leaves[i] for i in at], join
