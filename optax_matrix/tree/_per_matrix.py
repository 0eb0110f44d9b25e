"""Applies a transformation that is defined for one leaf to each matrix."""

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
        Transformation of a dict of stacks ``(batch, m, n)``.

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
        return {name: jax.vmap(inner.init)(x) for name, x in params.items()}

    def update_fn(updates, state, params=None, **extra_args):
        def one(g: Any, s: Any, p: Any):
            return inner.update(g, s, p, **extra_args)

        with within(found=None):  # Its values are no stacks.
            results = {
                name: jax.vmap(one)(x, state[name], params and params[name])
                for name, x in updates.items()
            }
        new = {name: result[0] for name, result in results.items()}
        return new, {name: result[1] for name, result in results.items()}

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)
