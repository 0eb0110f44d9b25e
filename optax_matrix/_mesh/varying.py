"""Types of arrays inside `jax.shard_map`: the mesh axes over which they vary."""

import functools
from typing import Any

import jax
import jax.numpy as jnp


def vary_like(tree: Any, like: Any) -> Any:
    """Makes arrays vary over all mesh axes over which others do; values stay.

    Inside `jax.shard_map` JAX checks the axes over which values vary. A constant varies
    over none, so a loop that starts from constants and continues with data is refused.
    Outside of `jax.shard_map` nothing happens.
    """
    if not jax.sharding.get_abstract_mesh().manual_axes:
        return tree
    marks = [jnp.any(x != x) for x in jax.tree.leaves(like)]
    if not marks:
        return tree
    never = functools.reduce(jnp.logical_or, marks) & False
    return jax.tree.map(lambda x: jnp.where(never, x, x), tree)
