"""Extra arguments of `update` that belong to the matrices, stack by stack."""

from typing import Any

import jax


def is_by_stack(value: Any, stacks: Any) -> bool:
    """Whether an argument has an array for each stack, the axes of matrices in front.

    Such are statistics and whatever has the shape of the stacks; others, such as a loss
    or a key, are for all matrices.
    """
    if jax.tree.structure(value) != jax.tree.structure(stacks):
        return False
    pairs = zip(jax.tree.leaves(value), jax.tree.leaves(stacks), strict=True)
    return all(_shape(x)[: s.ndim - 2] == s.shape[:-2] for x, s in pairs)


def has_shapes_of(value: Any, stacks: Any) -> bool:
    """Whether an argument has an array in the shape of each stack."""
    shapes = lambda tree: list(map(_shape, jax.tree.leaves(tree)))
    return is_by_stack(value, stacks) and shapes(value) == shapes(stacks)


def _shape(x: Any) -> tuple[int, ...]:
    """The shape of an array; that of a number or a function is ``()``."""
    return getattr(x, "shape", ())
