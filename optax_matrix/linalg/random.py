"""Random draws with a key for each matrix, whatever stack it is in; and a hash."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, Float, Key, Shaped


def seeded(seed: ArrayLike) -> Key[Array, ""]:
    """A Threefry key, whatever `jax_default_prng_impl` is set to.

    Its draws under `jax.vmap` do not depend on the rest of the batch; draws of ``rbg``
    keys do.
    """
    return jax.random.key(seed, impl="threefry2x32")


def normal(
    key: Key[Array, "*keys"], batch: tuple[int, ...], m: int, n: int, dtype: DTypeLike
) -> Float[Array, "*batch m n"]:
    """Draw normal matrices ``(*batch, m, n)``; the draw is float32 for every dtype.

    The key is typed, of shape ``batch``. With a single key all matrices are equal.
    """
    draw = lambda key: jax.random.normal(key, (m, n), jnp.float32).astype(dtype)
    return jnp.broadcast_to(for_each(draw, key.ndim)(key), (*batch, m, n))


def folded(key: Key[Array, ""], ids: Any) -> Key[Array, "*batch"]:
    """Fold the numbers ``(..., k)`` that identify each matrix into a key of its own."""
    ids = jnp.asarray(ids, jnp.uint32)

    def one(numbers: Array) -> Array:
        out = key
        for number in numbers:
            out = jax.random.fold_in(out, number)
        return out

    return for_each(one, ids.ndim - 1)(ids)


def for_each(f: Callable[..., Any], axes: int) -> Callable[..., Any]:
    """Map a function over this many leading axes of its arguments."""
    for _ in range(axes):
        f = jax.vmap(f)
    return f


def hash_uint32(x: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
    """Hash integers by the finalizer of MurmurHash3.

    Different integers have different hashes; every bit depends on all bits.
    """
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        x = (x ^ (x >> shift)) * jnp.uint32(factor)
    return x ^ (x >> 16)
