"""Placing state inside `jax.jit` on Auto axes, whose specs no type shows."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array

from optax_matrix._mesh import has_auto_axes, own_mesh
from optax_matrix._paths import group_of
from optax_matrix.sharding._stack_specs import is_sharded
from optax_matrix.stacks.layout import Layout
from optax_matrix.stacks.placement import Leaves


def spread(state: Any, layout: Layout, params: Leaves) -> Any:
    """A new state, of which every large array is sharded as its stack is.

    Zeros depend on nothing, so the compiler would hold them on every device whole.
    """
    if not any(map(has_auto_axes, params.values())):
        return state
    stacks = layout.stack(params)

    def of_leaf(keys, x):
        group = group_of(keys, layout.groups)
        if group is None or not is_sharded(keys, x, group):
            return x
        like = _of_shape(stacks[group.name], x.shape)
        # No number is above infinity, but the compiler keeps the comparison.
        return jnp.where(like > jnp.inf, jnp.zeros((), x.dtype), x)

    return jax.tree_util.tree_map_with_path(of_leaf, state)


def keep_small_whole(state: Any, layout: Layout) -> Any:
    """The state after a step, what is small or an index whole on every device.

    The compiler would split what the step splits, so that the next step would be
    another program, as would be the first one after a restart.
    """
    known = next(filter(has_auto_axes, jax.tree.leaves(state)), None)
    if known is None:
        return state
    whole = NamedSharding(own_mesh(known), PartitionSpec())

    def of_leaf(keys, x):
        group = group_of(keys, layout.groups)
        if group is not None and is_sharded(keys, x, group):
            return x
        return jax.lax.with_sharding_constraint(x, whole)

    return jax.tree_util.tree_map_with_path(of_leaf, state)


def _of_shape(stack: Array, shape: tuple[int, ...]) -> Array:
    """An array whose axes are sharded like the axes of a stack of their size."""
    axes = {0: 0}  # Those of the stack, to those of the shape.
    for axis, size in enumerate(shape[1:], 1):
        free = [i for i in (1, 2) if stack.shape[i] == size and i not in axes]
        axes |= {i: axis for i in free[:1]}
    rest = [i for i in range(stack.ndim) if i not in axes]
    values = jnp.max(stack, axis=rest)
    order = sorted(range(values.ndim), key=lambda i: axes[sorted(axes)[i]])
    return jax.lax.broadcast_in_dim(
        jnp.transpose(values, order), shape, sorted(axes.values())
    )
