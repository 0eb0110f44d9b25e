"""The arrays of trees: passed as arguments, in the dtypes that they had."""

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


def keep_dtype(new: Any, old: Any) -> Any:
    """An array in the dtype of another."""
    return new.astype(old.dtype) if new.dtype != old.dtype else new


def keep_dtypes(new: Any, old: Any) -> Any:
    """A state in the dtypes that it had, so that a scan can carry it."""
    if jax.tree.structure(new) != jax.tree.structure(old):
        return new
    is_array = lambda x: hasattr(x, "dtype")
    keep = lambda x, y: keep_dtype(x, y) if is_array(x) and is_array(y) else x
    return jax.tree.map(keep, new, old)
