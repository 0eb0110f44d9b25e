"""A hash of integers, cheap enough to compute for every entry of an array."""

import jax.numpy as jnp
from jaxtyping import Array, Shaped


def hash_uint32(x: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
    """Hash integers; different integers have different hashes.

    Args:
        x: uint32 of any shape.

    Returns:
        uint32 of the same shape. Every bit depends on all bits of the integer.

    References:
        The finalizer of MurmurHash3.
    """
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        x = (x ^ (x >> shift)) * jnp.uint32(factor)
    return x ^ (x >> 16)
