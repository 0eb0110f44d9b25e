"""Extra arguments of `update` that belong to the matrices, stack by stack."""

from typing import Any

import jax
import jax.numpy as jnp


def is_by_stack(value: Any, stacks: Any) -> bool:
    """Whether an argument has an array for each stack, the axes of matrices in front.

    Such are statistics and whatever has the shape of the stacks; others, such as a loss
    or a key, are for all matrices.
    """
    if jax.tree.structure(value) != jax.tree.structure(stacks):
        return False
    pairs = zip(jax.tree.leaves(value), jax.tree.leaves(stacks), strict=True)
    return all(jnp.shape(x)[: s.ndim - 2] == s.shape[:-2] for x, s in pairs)


def has_shapes_of(value: Any, stacks: Any) -> bool:
    """Whether an argument has an array in the shape of each stack."""
    shapes = lambda tree: jax.tree.map(jnp.shape, tree)
    return is_by_stack(value, stacks) and shapes(value) == shapes(stacks)
