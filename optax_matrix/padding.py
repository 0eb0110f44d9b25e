"""Which matrices of a stack are padding, so that a block can leave them out.

`owners` gives every device as many matrices as the one with most, zeros included. What
is computed of a zero matrix is thrown away. A block whose kernel is expensive skips it
by `on_real_matrices`; without padding that changes nothing.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from optax_matrix.teams import in_teams

_real: contextvars.ContextVar[Mapping[str, jax.Array]]
_real = contextvars.ContextVar("real matrices")


@contextlib.contextmanager
def known_padding(real: Mapping[str, jax.Array]) -> Iterator[None]:
    """Tells blocks which matrices are real.

    Args:
        real: Booleans ``(batch,)`` for each stack with padding, by its name.
    """
    token = _real.set(real)
    try:
        yield
    finally:
        _real.reset(token)


def on_real_matrices(kernel: Callable[[Any], Any], stacks: Any) -> Any:
    """Applies a kernel to all matrices but padding, whose result is zero.

    Args:
        kernel: Function from matrices ``(..., m, n)`` to matrices of the same shape.
        stacks: A tree of stacks ``(batch, m, n)``.

    Returns:
        The tree of results. Stacks with padding are processed one matrix at a time, so
        that each device takes the time of its own; what teams share, see `teams`, by
        all devices of a team.
    """
    known = _real.get({})

    def run(keys, x):
        names = [str(getattr(key, "key", key)) for key in keys]
        for name in names:
            if (shared := in_teams(kernel, name, x)) is not None:
                return shared
        real = next((known[name] for name in names if name in known), None)
        if real is None or x.ndim != 3 or len(x) != len(real):
            return kernel(x)  # A block has stacked the matrices otherwise.
        one = lambda pair: jax.lax.cond(pair[0], kernel, jnp.zeros_like, pair[1])
        return jax.lax.map(one, (real, x))

    return jax.tree_util.tree_map_with_path(run, stacks)
