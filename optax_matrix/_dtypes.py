"""Dtypes that are too small for sums and for steps."""

from typing import Any

import jax.numpy as jnp


def is_tiny(dtype: Any) -> bool:
    """Whether a dtype is floating and has eight bits or fewer."""
    return jnp.issubdtype(dtype, jnp.floating) and jnp.dtype(dtype).itemsize < 2
