"""Trees as ``{path: leaf}``, the same for dict, NNX, Linen and Equinox."""

import re
from collections.abc import Callable, Iterable
from typing import Any

import jax


def key_name(key: Any) -> str:
    """The name of one pytree key, without the syntax of its container."""
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def path_name(keys: tuple[Any, ...]) -> str:
    """The keys as ``a/b/c``."""
    return "/".join(map(key_name, keys))


def leaves_with_keys(tree: Any, is_leaf=None) -> list[tuple[tuple[Any, ...], Any]]:
    """`jax.tree.leaves_with_path` without the keys of boxes.

    NNX passes variables to `init` and bare arrays to `update`. So an attribute
    ``.value`` that holds all of its node, as in NNX variables and Linen boxes, is no
    key; one of several fields of a named tuple is.
    """
    return _flat(tree, is_leaf)[0]


def map_with_keys(f, tree: Any, *rest: Any, is_leaf=None) -> Any:
    """`jax.tree.map` of ``f(keys, leaf, ...)`` without the keys of boxes."""
    pairs, structure = _flat(tree, is_leaf)
    others = [structure.flatten_up_to(other) for other in rest]
    return structure.unflatten(
        f(keys, leaf, *more) for (keys, leaf), *more in zip(pairs, *others, strict=True)
    )


def _flat(tree, is_leaf):
    pairs, structure = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_leaf)
    if any(_is_value(keys) for keys, _ in pairs):
        alone = zip(pairs, _only_children(structure), strict=True)
        drop = lambda keys, lone: keys[:-1] if lone and _is_value(keys) else keys
        pairs = [(drop(keys, lone), leaf) for (keys, leaf), lone in alone]
    return pairs, structure


def _is_value(keys):
    is_field = keys and isinstance(keys[-1], jax.tree_util.GetAttrKey)
    return is_field and keys[-1].name == "value"


def _only_children(structure) -> list[bool]:
    """For each leaf whether its node has nothing else."""
    parts = structure.children()
    if not parts:
        return [False] * structure.num_leaves
    if len(parts) == 1 and jax.tree_util.treedef_is_leaf(parts[0]):
        return [True] * parts[0].num_leaves
    return [lone for part in parts for lone in _only_children(part)]


def prefixes(path: str) -> list[str]:
    """The path and those above it without the root, the longest first."""
    parts = path.split("/")
    return ["/".join(parts[:k]) for k in range(len(parts), 0, -1)]


def group_of(keys: tuple[Any, ...], groups: Any) -> Any:
    """The group under whose name a leaf of state is; None if there is none."""
    names = map(key_name, keys)
    return next((groups[name] for name in names if name in groups), None)


def shown(paths: Iterable[str], most: int = 5) -> str:
    """The first of some paths, for a message."""
    paths = list(paths)
    return ", ".join(paths[:most]) + (", ..." if len(paths) > most else "")


def named_leaves(tree: Any, is_leaf=None) -> dict[str, Any]:
    """The leaves of a tree by path; absent nodes (None, `MaskedNode`) are left out."""
    return {path_name(keys): leaf for keys, leaf in leaves_with_keys(tree, is_leaf)}


def flatten_named(tree: Any) -> tuple[dict[str, Any], Callable[[Any], Any]]:
    """The leaves of a tree by path, and the function that makes a tree from such."""
    pairs, structure = _flat(tree, None)
    leaves = {path_name(keys): leaf for keys, leaf in pairs}
    return leaves, lambda new: structure.unflatten(new[path] for path in leaves)


def map_named(f, tree: Any, *rest: Any) -> Any:
    """`jax.tree.map` of ``f(path, leaf, ...)``."""
    return map_with_keys(lambda keys, *each: f(path_name(keys), *each), tree, *rest)


def natural_order(path: str) -> tuple:
    """Sort key under which ``layers/2`` comes before ``layers/10``."""
    return tuple(
        (0, int(part), "") if part.isdecimal() else (1, 0, part)
        for part in re.split(r"(\d+)", path)
        if part
    )
