"""Runs a transformation of a whole tree with modified parameters."""

from collections.abc import Callable
from typing import Any

import optax
from jaxtyping import Array

from optax_matrix.stacks.map_matrices import map_matrices


def on_mapped_params(
    tx: optax.GradientTransformation,
    f: Callable[..., Array],
    *args: Any,
    dimension_numbers: Any = None,
) -> optax.GradientTransformationExtraArgs:
    """Passes `map_matrices` of the parameters to a transformation, as its parameters.

    An example is weight decay whose strength depends on the shape of a matrix:
    `optax.add_decayed_weights` of matrices that are multiplied by their factors.
    `init` gets the parameters themselves.

    >>> import jax.numpy as jnp, optax
    >>> tenth = lambda w, ids: 0.1 * w
    >>> tx = on_mapped_params(optax.add_decayed_weights(0.5), tenth)
    >>> params = {"kernel": jnp.ones((2, 4)), "bias": jnp.ones(4)}
    >>> zeros = {"kernel": jnp.zeros((2, 4)), "bias": jnp.zeros(4)}
    >>> updates, _ = tx.update(zeros, tx.init(params), params)
    >>> round(float(updates["kernel"][0, 0]), 2), float(updates["bias"][0])
    (0.05, 0.5)
    """
    tx = optax.with_extra_args_support(tx)

    def update_fn(updates, state, params=None, **extra_args):
        if params is not None:
            params = map_matrices(f, params, *args, dimension_numbers=dimension_numbers)
        return tx.update(updates, state, params, **extra_args)

    return optax.GradientTransformationExtraArgs(tx.init, update_fn)
