"""Columns before and after a pass of Cholesky QR."""

import jax.numpy as jnp
from jaxtyping import Array

from optax_matrix.linalg.random import hash_uint32
from optax_matrix.linalg.scale import inverse


def is_near(error: Array) -> Array:
    """Whether the squared error of a Gram matrix is at the level of rounding."""
    eps = float(jnp.finfo(error.dtype).eps)
    return jnp.linalg.norm(error, axis=(-2, -1)) < 2 * eps**0.5


def random_columns(like: Array, seed: Array) -> Array:
    """Random columns ``(m, n)`` of nearly unit norm, for matrices ``(..., m, n)``."""
    m, n = like.shape[-2:]
    place = jnp.arange(m * n, dtype=jnp.uint32).reshape(m, n)
    # The seed depends on the pass; from a constant, compilers would compute all of this
    # at compile time and store it as one large constant.
    bits = hash_uint32(place + seed.astype(jnp.uint32) * jnp.uint32(0x9E3779B9))
    return (bits.astype(like.dtype) * 2.0**-31 - 1) * (3 / m) ** 0.5


def unit_columns(y: Array, replacement: Array | None = None) -> Array:
    """Columns of norm one; those of zeros are replaced, or stay zero."""
    norms = jnp.sqrt(jnp.sum(y * y, axis=-2, keepdims=True))
    unit = y * inverse(norms)
    return unit if replacement is None else jnp.where(norms == 0, replacement, unit)
