"""Applies a transformation that is defined for one leaf to each matrix."""

from collections.abc import Callable
from typing import Any

import jax
import optax

from optax_matrix._surroundings import within


def per_matrix(
    inner: optax.GradientTransformation,
) -> optax.GradientTransformationExtraArgs:
    """Maps a transformation over the matrices of every stack.

    Inside `on_matrices` a leaf is a stack, so a transformation that optax defines per
    leaf or per tree (``clip_by_block_rms``, ``clip_by_global_norm``,
    ``scale_by_trust_ratio``, ``scale_by_factored_rms``) would couple the matrices of a
    stack. Here each matrix is a tree by itself, and the state of a stack is the inner
    state with a batch axis in front of every leaf.

    Args:
        inner: Transformation of one matrix ``(m, n)``.

    Returns:
        Transformation of a tree of stacks ``(..., m, n)``.

    Examples:
        >>> import jax.numpy as jnp, optax
        >>> tx = per_matrix(optax.clip_by_global_norm(1.0))
        >>> stacks = {"a": jnp.stack([jnp.eye(2), 10 * jnp.eye(2)])}
        >>> clipped, _ = tx.update(stacks, tx.init(stacks))
        >>> [round(float(x), 3) for x in (clipped["a"] ** 2).sum((1, 2))]
        [1.0, 1.0]
    """
    inner = optax.with_extra_args_support(inner)

    def init_fn(params):
        return jax.tree.map(lambda x: _over_matrices(inner.init, x)(x), params)

    def update_fn(updates, state, params=None, **extra_args):
        leaves, structure = jax.tree.flatten(updates)
        # A gradient is a tree like the updates; other arguments are for all matrices.
        gradient = extra_args.pop("gradient", None)
        trees = (state, params, gradient)
        none = [None] * len(leaves)
        each = [none if t is None else structure.flatten_up_to(t) for t in trees]

        def one(g: Any, s: Any, p: Any, gradient: Any) -> Any:
            known = {} if gradient is None else {"gradient": gradient}
            return inner.update(g, s, p, **known, **extra_args)

        with within(found=None):  # Its values are no stacks.
            rows = zip(leaves, *each, strict=True)
            results = [_over_matrices(one, row[0])(*row) for row in rows]
        new, states = ([result[i] for result in results] for i in (0, 1))
        return structure.unflatten(new), structure.unflatten(states)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def _over_matrices(f: Callable[..., Any], stack: Any) -> Callable[..., Any]:
    """The function of one matrix, mapped over the axes in front of its last two."""
    for _ in range(stack.ndim - 2):
        f = jax.vmap(f)
    return f
