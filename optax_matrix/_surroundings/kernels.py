"""An expensive kernel on stacks that devices may share and that may have padding.

`on_real_matrices` combines three ideas:

* **Sharing**: several devices may compute one matrix. `owners` gives them a form of the
  kernel for that, by stack; stacks without one are each device's own.
* **Skipping**: `owners` gives every device as many matrices as the one with most, zeros
  included. What is computed of a zero matrix is thrown away, so stacks with padding are
  processed one matrix at a time, and zeros are skipped. Each device then takes the time
  of its own matrices. Without padding nothing changes.
* **Joining**: stacks of one shape are computed as one, as in ``joining``.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from optax_matrix._surroundings import here
from optax_matrix._surroundings.joining import jointly, largest_batch


def on_real_matrices(
    kernel: Callable[[Any], Any], stacks: Any, *, transposable: bool = False
) -> Any:
    """The kernel of all matrices but padding, whose result is zero.

    A kernel is `transposable` if its value of the transpose is the transpose of its
    value: then stacks of ``(m, n)`` and ``(n, m)`` may be joined.
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
    own = [i for i, y in enumerate(found) if y is None]
    wide = lambda x: x.mT if transposable and x.shape[-2] > x.shape[-1] else x
    computed = _without_padding(
        kernel,
        {i: wide(leaves[i]) for i in own},
        {i: _real_ones(names[i], leaves[i]) for i in own},
    )
    for i, y in computed.items():
        found[i] = y if y.shape == leaves[i].shape else y.mT
    return structure.unflatten(found)


# Sharing.


def _shared(kernel: Callable, name: str, x: jax.Array) -> jax.Array | None:
    """The kernel of a stack whose work devices share; None if they do not."""
    apply = here().shared.get(name)
    return None if apply is None else apply(kernel, x)


# Skipping and joining.


def _without_padding(
    kernel: Callable, stacks: Mapping[Any, jax.Array], real: Mapping[Any, Any]
) -> dict[Any, jax.Array]:
    if here().alone:  # To join large stacks would copy them in every step.
        return {key: kernel(x) for key, x in stacks.items()}
    run = functools.partial(_sequentially, kernel)
    return jointly(run, stacks, real)


def _sequentially(kernel: Callable, x: jax.Array, real: jax.Array | None) -> jax.Array:
    """The kernel of a stack, one by one with padding, else within the limit."""
    most = largest_batch(x)
    if real is None:
        if most is None or len(x) <= most:
            return kernel(x)
        return jax.lax.map(kernel, x, batch_size=most if most > 1 else None)
    one = lambda pair: jax.lax.cond(pair[0], kernel, jnp.zeros_like, pair[1])
    return jax.lax.map(one, (real, x))


def _real_ones(name: str, x: jax.Array) -> jax.Array | None:
    """Which matrices of a stack are real; None if all of them are, or unknown."""
    real = here().real.get(name)
    if real is None or x.ndim != 3 or len(x) != len(real):
        return None  # A block has stacked the matrices otherwise.
    return real


def _stack_name(keys: Any) -> str:
    """The name of the stack that a leaf belongs to, if anything is known of it."""
    names = [str(getattr(key, "key", key)) for key in keys]
    known = here()
    return next((n for n in names if n in known.real or n in known.shared), "")
