"""One call of a kernel for all stacks of the same shape.

Blocks see ``(m, n)`` and ``(n, m)`` in the same shape when they turn the side they work
on to the rows, and the Gram matrices of different stacks often have one size. As one
stack they need one copy of a large kernel in the program, and a fraction of the time to
compile it. `owners` allows that, where each device has whole matrices. Elsewhere the
partitioner decides where arrays lie, and stacks of different shardings stay apart.
"""

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from optax_matrix._surroundings import here


def largest_batch(x: jax.Array) -> int | None:
    """The largest number of these matrices in a stack; None if nothing limits it."""
    limit = here().limit
    return None if limit is None or x.ndim != 3 else limit(*x.shape[1:])


def jointly(
    f: Callable, *stacks: Mapping[Any, Any], limited: bool = True
) -> dict[Any, Any]:
    """Applies a function to each stack, and to those of the same shapes as to one.

    Args:
        f: Function of as many arguments as there are dicts, arrays or trees of arrays
            of one stack. It treats every matrix independently, and returns arrays with
            the matrices in front.
        *stacks: Dicts with the same keys. The first array in the first one is
            ``(batch, m, n)``. Where another one has no axis of matrices in front, its
            stack stays apart.
        limited: Whether the limit of a stack holds for joined ones; otherwise `f` keeps
            memory bounded by itself.

    Returns:
        The values of `f` by key.
    """
    arguments = {key: tuple(tree[key] for tree in stacks) for key in stacks[0]}
    found = {}
    for keys in _joined(arguments, limited):
        parts = [arguments[key] for key in keys]
        if len(keys) == 1:
            found[keys[0]] = f(*parts[0])
            continue
        out, start = f(*jax.tree.map(lambda *xs: jnp.concatenate(xs), *parts)), 0
        for key, part in zip(keys, parts, strict=True):
            own = slice(start, start := start + _batch(part))
            found[key] = jax.tree.map(lambda x, own=own: x[own], out)
    return {key: found[key] for key in arguments}


def _joined(arguments: Mapping[Any, Any], limited: bool) -> list[list[Any]]:
    """The keys of the stacks that are computed as one."""
    if here().limit is None:
        return [[key] for key in arguments]
    groups: list[list[Any]] = []
    open_: dict[Hashable, list[Any]] = {}  # The last group of each kind.
    for key, tree in arguments.items():
        leaves, structure = jax.tree.flatten(tree)
        batch, most = _batch(tree), largest_batch(leaves[0])
        kind = (structure, *((x.shape[1:], x.dtype) for x in leaves))
        if leaves[0].ndim != 3 or any(x.shape[:1] != (batch,) for x in leaves):
            kind = key  # A value for the whole stack cannot be joined.
        group = open_.get(kind)
        count = batch + sum(_batch(arguments[other]) for other in group or ())
        if group is None or (limited and most is not None and count > most):
            groups.append(group := [])
            open_[kind] = group
        group.append(key)
    return groups


def _batch(tree: Any) -> int:
    return len(jax.tree.leaves(tree)[0])
