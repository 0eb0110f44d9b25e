"""Ratios beyond what a gradient can have to its own second moment."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

_ROUNDING = 1e-5  # At the first step many ratios are equal to the bound.


def is_within(ratio: jax.Array, bound: ArrayLike) -> jax.Array:
    """Whether ratios are at most the bound, up to rounding."""
    return jnp.abs(ratio) <= (1 + _ROUNDING) * bound


def bounded(ratio: jax.Array, bound: ArrayLike) -> jax.Array:
    """A ratio r beyond the bound b becomes b^2 / r: it has another cause."""
    within = is_within(ratio, bound)
    return jnp.where(within, ratio, bound**2 / jnp.where(within, 1, ratio))
