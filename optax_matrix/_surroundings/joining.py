"""Stacks of one shape are computed as one.

Blocks see ``(m, n)`` and ``(n, m)`` in the same shape when they turn the side they work
on to the rows, and the Gram matrices of different stacks often have one size. As one
stack they need one copy of a large kernel in the program, and a fraction of the time to
compile it.

That needs whole matrices on each device: under `owners`, or where there is one device.
Elsewhere the partitioner decides where arrays lie, and stacks of different shardings
stay apart.
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


def jointly(f: Callable, *stacks: Mapping[Any, Any]) -> dict[Any, Any]:
    """Applies a function to each stack, and to those of the same shapes as to one.

    The function treats every matrix independently, and returns arrays whose first axis
    is that of the matrices. The first array is ``(batch, m, n)``; if another one lacks
    an axis of matrices in front, its stack is not joined. The limit of a stack holds
    for joined ones: a larger one would be copied, and its first result would wait for
    all of its gradients.
    """
    arguments = {key: tuple(tree[key] for tree in stacks) for key in stacks[0]}
    found = {}
    for keys in _joined(arguments):
        parts = [arguments[key] for key in keys]
        if len(keys) == 1:
            found[keys[0]] = f(*parts[0])
            continue
        # A barrier, so that XLA joins the stacks only once.
        whole = jax.tree.map(lambda *xs: jnp.concatenate(xs), *parts)
        out, start = f(*jax.lax.optimization_barrier(whole)), 0
        for key, part in zip(keys, parts, strict=True):
            own = slice(start, start := start + _batch(part))
            mine = jax.tree.map(lambda x, own=own: x[own], out)
            # A barrier, so that XLA keeps the slices in the branch of a renewal.
            found[key] = jax.lax.optimization_barrier(mine)
    return {key: found[key] for key in arguments}


def _joined(arguments: Mapping[Any, Any]) -> list[list[Any]]:
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
        if group is None or (most is not None and count > most):
            groups.append(group := [])
            open_[kind] = group
        group.append(key)
    return groups


def _batch(tree: Any) -> int:
    return len(jax.tree.leaves(tree)[0])
