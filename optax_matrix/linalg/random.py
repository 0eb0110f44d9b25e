"""Random draws with a key for each matrix, independent of its neighbors in a stack."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, Float, Key


def seeded(seed: ArrayLike) -> Key[Array, ""]:
    """Make a key whose draws under `jax.vmap` do not depend on the rest of the batch.

    The draws of JAX's other generators, such as ``rbg``, do.

    Args:
        seed: An integer.

    Returns:
        A Threefry key, whatever `jax_default_prng_impl` is set to.
    """
    return jax.random.key(seed, impl="threefry2x32")


def normal(
    key: Key[Array, "*keys"], batch: tuple[int, ...], m: int, n: int, dtype: DTypeLike
) -> Float[Array, "*batch m n"]:
    """Draw matrices of standard normal entries; the draw is float32 for every dtype.

    Args:
        key: Typed keys of shape ``batch``, or a single key, which makes all matrices
            equal.
        batch: The batch axes.
        m: Number of rows.
        n: Number of columns.
        dtype: Dtype of the result.

    Returns:
        Matrices of shape ``(*batch, m, n)``.
    """
    draw = lambda key: jax.random.normal(key, (m, n), jnp.float32).astype(dtype)
    return jnp.broadcast_to(for_each(draw, key.ndim)(key), (*batch, m, n))


def folded(key: Key[Array, ""], ids: Any) -> Key[Array, "*batch"]:
    """Fold the identity of each matrix into a key, so that each has its own key.

    Args:
        key: A typed key.
        ids: Unsigned integers ``(..., k)``; an empty row gives the key itself.

    Returns:
        Keys of shape ``(...)``.
    """
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
