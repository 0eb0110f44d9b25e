"""Stateless blocks: one function applied to every stack of matrices."""

from collections.abc import Callable

import jax
import optax


def map_matrices(
    kernel: Callable[[jax.Array], jax.Array],
) -> optax.GradientTransformationExtraArgs:
    """A stateless transformation that applies one function to every stack."""

    def update_fn(updates, params):
        del params
        return jax.tree.map(kernel, updates)

    return optax.with_extra_args_support(optax.stateless(update_fn))
