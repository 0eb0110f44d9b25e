"""Argument checks of the kernels: static counts, and arrays that are matrices."""

from typing import Any

import jax.numpy as jnp
import numpy as np


def check_positive_int(name: str, value: Any) -> None:
    """Raises unless a value is an int of at least one that int32 holds.

    Args:
        name: The argument's name, for the message.
        value: The value; it is static, so arrays and tracers are refused too.

    Raises:
        ValueError: If it is anything but a positive int.
    """
    is_int = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not is_int or not 1 <= value < 2**31:
        raise ValueError(
            f"`{name}` must be a positive int, got {value!r}; pass a static number, "
            "such as 5, below 2**31."
        )


def check_matrices(x: Any) -> None:
    """Raises unless an array holds floating matrices ``(..., m, n)``.

    Args:
        x: An array or a tracer.

    Raises:
        ValueError: If it has fewer than two axes or no floating dtype.
    """
    if x.ndim < 2:
        raise ValueError(
            f"`x` must be matrices (..., m, n), got shape {x.shape}; leave vectors to "
            "another optimizer, or add an axis."
        )
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise ValueError(
            f"`x` must be floating, got dtype {x.dtype}; cast it, for example with "
            "x.astype(jnp.float32)."
        )
