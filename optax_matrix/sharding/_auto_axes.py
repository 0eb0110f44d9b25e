"""Placing state inside `jax.jit` on Auto axes, whose specs no type shows.

The compiler is told which arrays lie alike and not where: of a state that nothing is
said about, it holds much on every device whole, and moves the rest after the first
step, which then compiles again.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array

from optax_matrix._mesh import has_auto_axes, own_mesh, sharded_like
from optax_matrix.matrices.paths import group_of
from optax_matrix.sharding._stack_specs import is_sharded
from optax_matrix.stacks.layout import Group, Layout
from optax_matrix.stacks.placement import Leaves


def spread(state: Any, layout: Layout, params: Leaves) -> Any:
    """A new state, of which every large array is sharded as its stack is."""
    known = next(filter(has_auto_axes, params.values()), None)
    if known is None:
        return state
    stacks = layout.stack(params)
    alike = lambda x, group: _of_shape(stacks[group.name], x.shape)
    likes = _of_large(alike, state, layout)
    return _placed(state, likes, own_mesh(known))


def held_in_place(new: Any, old: Any, layout: Layout) -> Any:
    """The state after a step, sharded as that before it."""
    known = next(filter(has_auto_axes, jax.tree.leaves(new)), None)
    if known is None:
        return new
    return _placed(new, _of_large(lambda x, _: x, old, layout), own_mesh(known))


def _of_large(f: Callable[[Array, Group], Array], state: Any, layout: Layout) -> Any:
    """What `f` makes of the large arrays of stacks; None for all others."""

    def of_leaf(keys, x):
        group = group_of(keys, layout.groups)
        large = group is not None and is_sharded(keys, x, group)
        return f(x, group) if large else None

    return jax.tree_util.tree_map_with_path(of_leaf, state)


def _placed(state: Any, likes: Any, mesh: Any) -> Any:
    """Arrays that lie as others do, or, beside None, on every device whole."""
    whole = NamedSharding(mesh, PartitionSpec())

    def place(x, like):
        if like is None:
            return jax.lax.with_sharding_constraint(x, whole)
        return sharded_like(x, like)

    return jax.tree.map(place, state, likes)


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
