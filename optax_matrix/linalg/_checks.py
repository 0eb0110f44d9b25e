"""The check that the argument of a kernel is a stack of matrices."""

from typing import Any

import jax.numpy as jnp


def check_matrices(x: Any) -> None:
    """Raises unless an array holds floating matrices ``(..., m, n)``.

    Args:
        x: An array or a tracer.

    Raises:
        ValueError: If it has fewer than two axes or no floating dtype.
    """
    if x.ndim < 2:
        remedy = "leave vectors to another optimizer, or add an axis."
        if not x.ndim:
            remedy = (
                "optax.inject_hyperparams calls functions among the arguments as "
                "schedules, so give kernels by name, or use om.inject_hyperparams."
            )
        raise ValueError(
            f"`x` must be matrices (..., m, n), got shape {x.shape}; {remedy}"
        )
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise ValueError(
            f"`x` must be floating, got dtype {x.dtype}; cast it, for example with "
            "x.astype(jnp.float32)."
        )
