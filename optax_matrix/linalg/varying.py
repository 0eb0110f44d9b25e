"""Loops inside `jax.shard_map`, whose state must vary over the same axes throughout."""

import functools
from typing import Any

import jax
import jax.numpy as jnp


def vary_alike(*trees: Any) -> Any:
    """Makes arrays vary over the same manual mesh axes, without changing them.

    Inside `jax.shard_map` JAX checks over which axes of the mesh values vary. A
    constant that starts a loop varies over none, and the values that replace it vary
    like the data. Outside of `jax.shard_map` nothing happens.

    Args:
        *trees: Trees of arrays, among them the data.

    Returns:
        The trees; each of their arrays varies over every axis over which one does.
    """
    if not jax.sharding.get_abstract_mesh().manual_axes:
        return trees
    marks = [jnp.any(x != x) for x in jax.tree.leaves(trees)]
    never = functools.reduce(jnp.logical_or, marks) & False
    return jax.tree.map(lambda x: jnp.where(never, x, x), trees)
