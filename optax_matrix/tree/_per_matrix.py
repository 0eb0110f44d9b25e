"""Applies a transformation that is defined for one leaf to each matrix."""

from collections.abc import Callable
from typing import Any

import jax
import optax

from optax_matrix._surroundings import within
from optax_matrix._surroundings.trees import is_by_stack


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
        # Other arguments than a gradient and statistics are for all matrices.
        own = {n: x for n, x in extra_args.items() if is_by_stack(x, updates)}
        own |= {
            n: x for n, x in extra_args.items() if n == "gradient" and x is not None
        }
        common = {n: x for n, x in extra_args.items() if n not in own}
        trees = (state, params, *own.values())
        none = [None] * len(leaves)
        each = [none if t is None else structure.flatten_up_to(t) for t in trees]

        def one(g: Any, s: Any, p: Any, *parts: Any) -> Any:
            known = dict(zip(own, parts, strict=True))
            return inner.update(g, s, p, **known, **common)

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
