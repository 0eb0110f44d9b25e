"""How a kernel is applied to stacks of which more is known than their values.

`jointly` computes stacks of the same shape as one. Blocks see ``(m, n)`` and ``(n, m)``
in the same shape when they turn the side they work on to the rows, and the Gram
matrices of different stacks often have one size. As one stack they need one copy of a
large kernel in the program, and a fraction of the time to compile it. That needs whole
matrices on each device: under `owners`, or where there is one device. Elsewhere the
partitioner decides where arrays lie, and stacks of different shardings stay apart.

`on_real_matrices` leaves out padding. `owners` gives every device as many matrices as
the one with most, zeros included. What is computed of a zero matrix is thrown away, so
a block whose kernel is expensive skips it; without padding that changes nothing.
"""

import functools
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

    The function treats every matrix independently, and returns arrays with the matrices
    in front. The first array is ``(batch, m, n)``; where another one has no axis of
    matrices in front, its stack stays apart. With ``limited`` the limit of a stack
    holds for joined ones; otherwise ``f`` keeps memory bounded by itself.
    """
    arguments = {key: tuple(tree[key] for tree in stacks) for key in stacks[0]}
    found = {}
    for keys in _joined(arguments, limited):
        parts = [arguments[key] for key in keys]
        if len(keys) == 1:
            found[keys[0]] = f(*parts[0])
            continue
        # So that XLA joins the stacks only once.
        whole = jax.tree.map(lambda *xs: jnp.concatenate(xs), *parts)
        out, start = f(*jax.lax.optimization_barrier(whole)), 0
        for key, part in zip(keys, parts, strict=True):
            own = slice(start, start := start + _batch(part))
            mine = jax.tree.map(lambda x, own=own: x[own], out)
            # So that XLA does not move the slices out of the branch of a renewal.
            found[key] = jax.lax.optimization_barrier(mine)
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


def on_real_matrices(
    kernel: Callable[[Any], Any], stacks: Any, *, transposable: bool = False
) -> Any:
    """The kernel of all matrices but padding, whose result is zero.

    Stacks ``(batch, m, n)`` with padding are processed one matrix at a time, so that
    each device takes the time of its own, but for what devices share. A kernel is
    `transposable` if its value of the transpose is the transpose of its value: then
    stacks of ``(m, n)`` and ``(n, m)`` may be joined, see `jointly`.
    """
    paths, structure = jax.tree.flatten_with_path(stacks)
    names = [_stack_name(keys) for keys, _ in paths]
    leaves = [x for _, x in paths]
    for x in leaves:
        if x.ndim < 2:
            raise ValueError(
                f"`updates` must be matrices (..., m, n), got shape {x.shape}; run it "
                "in `on_matrices`, which leaves out vectors."
            )
    found = [_shared(kernel, *pair) for pair in zip(names, leaves, strict=True)]
    wide = lambda x: x.mT if transposable and x.shape[-2] > x.shape[-1] else x
    rest = {i: wide(leaves[i]) for i, y in enumerate(found) if y is None}
    real = {i: _real_ones(names[i], x) for i, x in rest.items()}
    run = functools.partial(_sequentially, kernel)
    if here().alone:  # To join large stacks would copy them in every step.
        joined = {i: kernel(x) for i, x in rest.items()}
    else:
        joined = jointly(run, rest, real, limited=False)
    for i, y in joined.items():
        found[i] = y if y.shape == leaves[i].shape else y.mT
    return structure.unflatten(found)


def _stack_name(keys: Any) -> str:
    """The name of the stack that a leaf belongs to, if anything is known of it."""
    names = [str(getattr(key, "key", key)) for key in keys]
    known = here()
    return next((n for n in names if n in known.real or n in known.shared), "")


def _shared(kernel: Callable, name: str, x: jax.Array) -> jax.Array | None:
    """The kernel of a stack whose work devices share; None if they do not."""
    apply = here().shared.get(name)
    return None if apply is None else apply(kernel, x)


def _real_ones(name: str, x: jax.Array) -> jax.Array | None:
    """Which matrices of a stack are real; None if all of them are, or unknown."""
    real = here().real.get(name)
    if real is None or x.ndim != 3 or len(x) != len(real):
        return None  # A block has stacked the matrices otherwise.
    return real


def _sequentially(kernel: Callable, x: jax.Array, real: jax.Array | None) -> jax.Array:
    """The kernel of a stack, one by one with padding, else within the limit."""
    most = largest_batch(x)
    if real is None:
        if most is None or len(x) <= most:
            return kernel(x)
        return jax.lax.map(kernel, x, batch_size=most if most > 1 else None)
    one = lambda pair: jax.lax.cond(pair[0], kernel, jnp.zeros_like, pair[1])
    return jax.lax.map(one, (real, x))
