"""What `update` refuses before anything is computed."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import optax

from optax_matrix.layout.paths import named_leaves


def guarded(
    tx: optax.GradientTransformation,
) -> optax.GradientTransformationExtraArgs:
    """A transformation that refuses gradients of other shapes than the parameters.

    Without this, a gradient of another shape with as many entries would be taken for
    matrices of the right shape, and Adam would broadcast it.

    Args:
        tx: A transformation of a whole tree.

    Returns:
        The same transformation, with the same state. Its `update` raises a `ValueError`
        that names the leaf.

    Examples:
        >>> import jax.numpy as jnp, optax
        >>> tx, params = guarded(optax.adam(1e-3)), {"bias": jnp.ones(3)}
        >>> tx.update({"bias": jnp.ones(1)}, tx.init(params), params)
        Traceback (most recent call last):
        ValueError: `updates` must have ... got (1,) for 'bias' of shape (3,); ...
    """
    tx = optax.with_extra_args_support(tx)

    def update_fn(updates, state, params=None, **extra_args):
        if params is not None:
            check_shapes(named_leaves(updates), named_leaves(params))
        return tx.update(updates, state, params, **extra_args)

    return optax.GradientTransformationExtraArgs(tx.init, update_fn)


def check_shapes(updates: Mapping[str, Any], params: Mapping[str, Any]) -> None:
    """Raises unless every gradient, by path, has the shape of its parameter."""
    for path, leaf in updates.items():
        if path not in params:
            raise ValueError(
                "`updates` must be gradients of `params`, got one for "
                f"{path!r}, which `params` lack; pass trees of one structure."
            )
        got, wanted = np.shape(leaf), np.shape(params[path])
        if got != wanted:
            raise ValueError(
                f"`updates` must have the shapes of the parameters, got {got} for "
                f"{path!r} of shape {wanted}; pass gradients as jax.grad returns them, "
                "neither transposed nor reshaped."
            )
