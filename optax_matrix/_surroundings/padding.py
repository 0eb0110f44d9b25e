"""Which matrices of a stack are padding, so that a block can leave them out.

`owners` gives every device as many matrices as the one with most, zeros included. What
is computed of a zero matrix is thrown away. A block whose kernel is expensive skips it
by `on_real_matrices`; without padding that changes nothing.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from optax_matrix._surroundings import here
from optax_matrix._surroundings.joining import jointly, largest_batch


def on_real_matrices(
    kernel: Callable[[Any], Any], stacks: Any, *, transposable: bool = False
) -> Any:
    """The kernel of all matrices but padding, whose result is zero.

    Stacks ``(batch, m, n)`` with padding are processed one matrix at a time, so that
    each device takes the time of its own, but for what devices share. A kernel is
    `transposable` if its value of the transpose is the transpose of its value: then
    stacks of ``(m, n)`` and ``(n, m)`` may be joined, see `joining`.
    """
    paths, structure = jax.tree.flatten_with_path(stacks)
    names = [_stack_name(keys) for keys, _ in paths]
    leaves = [x for _, x in paths]
    found = [_shared(kernel, *pair) for pair in zip(names, leaves, strict=True)]
    wide = lambda x: x.mT if transposable and x.shape[-2] > x.shape[-1] else x
    rest = {i: wide(leaves[i]) for i, y in enumerate(found) if y is None}
    real = {i: _real_ones(names[i], x) for i, x in rest.items()}
    run = functools.partial(_sequentially, kernel)
    for i, y in jointly(run, rest, real, limited=False).items():
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
