"""Parameter trees as ``{path: leaf}``, the same for dict, NNX, Linen and Equinox."""

import re
from collections.abc import Callable
from typing import Any

import jax


def key_name(key: Any) -> str:
    """The name of one pytree key, without the syntax of its container."""
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def path_name(keys: tuple[Any, ...]) -> str:
    """The keys as ``a/b/c``.

    A last attribute ``.value`` is not part of the path: NNX variables and Linen boxes
    have it, but NNX passes variables to `init` and bare arrays to `update`.
    """
    if keys and isinstance(keys[-1], jax.tree_util.GetAttrKey):
        keys = keys[:-1] if keys[-1].name == "value" else keys
    return "/".join(key_name(k) for k in keys)


def prefixes(path: str) -> list[str]:
    """The path and those above it without the root, the longest first."""
    parts = path.split("/")
    return ["/".join(parts[:k]) for k in range(len(parts), 0, -1)]


def group_of(keys: tuple[Any, ...], groups: Any) -> Any:
    """The group under whose name a leaf of state is; None if there is none."""
    names = map(key_name, keys)
    return next((groups[name] for name in names if name in groups), None)


def named_leaves(tree: Any, is_leaf=None) -> dict[str, Any]:
    """The leaves of a tree by path; absent nodes (None, `MaskedNode`) are left out."""
    leaves = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_leaf)[0]
    return {path_name(keys): leaf for keys, leaf in leaves}


def flatten_named(tree: Any) -> tuple[dict[str, Any], Callable[[Any], Any]]:
    """The leaves of a tree by path, and the function that makes a tree from such."""
    pairs, structure = jax.tree_util.tree_flatten_with_path(tree)
    leaves = {path_name(keys): leaf for keys, leaf in pairs}
    return leaves, lambda new: structure.unflatten(new[path] for path in leaves)


def map_named(f, tree: Any, *rest: Any) -> Any:
    """`jax.tree.map` of ``f(path, leaf, ...)``."""
    named = lambda keys, *leaves: f(path_name(keys), *leaves)
    return jax.tree_util.tree_map_with_path(named, tree, *rest)


def natural_order(path: str) -> tuple:
    """Sort key under which ``layers/2`` comes before ``layers/10``."""
    return tuple(
        (0, int(part), "") if part.isdigit() else (1, 0, part)
        for part in re.split(r"(\d+)", path)
        if part
    )
