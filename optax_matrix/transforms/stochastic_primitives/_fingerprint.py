"""What parameters will be once an update is applied, and whether they became that."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from optax_matrix.linalg.hashing import hash_uint32


def update_towards(
    target: jax.Array, w: jax.Array, update_dtype: DTypeLike | None = None
) -> tuple[jax.Array, jax.Array]:
    """The update that brings parameters to a target, and what they will be with it.

    Args:
        target: Where to, in the working precision.
        w: The parameters.
        update_dtype: Dtype that the update is rounded to, if it is narrower than that
            of ``w``.

    Returns:
        The update in the dtype of ``w``, and ``w + update`` rounded to it, as
        `optax.apply_updates` has it.
    """
    wide = w.astype(target.dtype)
    # The barrier keeps the two uses of the update from being computed twice.
    dtype = w.dtype
    if update_dtype is not None and jnp.dtype(update_dtype).itemsize < dtype.itemsize:
        dtype = update_dtype
    update = jax.lax.optimization_barrier(rounded(target - wide, dtype))
    return update.astype(w.dtype), rounded(wide + update, w.dtype).astype(w.dtype)


def rounded(x: jax.Array, dtype: Any) -> jax.Array:
    """The nearest values of another dtype, in the dtype of ``x``.

    A cast there and back may be left out by compilers; this is not.

    Args:
        x: Any floating array.
        dtype: A narrower dtype, or the same.

    Returns:
        The array, rounded.
    """
    if jnp.dtype(dtype) == x.dtype:
        return x
    info = jnp.finfo(dtype)
    y = jax.lax.reduce_precision(x, int(info.nexp), int(info.nmant))
    if info.nexp == jnp.finfo(x.dtype).nexp:
        return y
    # Subnormal numbers of float16, which are flushed to zero above.
    step = float(info.smallest_subnormal)
    small = jnp.abs(x) < float(info.smallest_normal)
    return jnp.where(small, jnp.round(x / step) * step, y)


def fingerprint(x: jax.Array) -> jax.Array:
    """A number for every matrix that tells, bit for bit, whether it has changed.

    Sums are of integers, modulo 2^32, so that it depends neither on their order nor on
    sharding. Of all changes one in 2^32 goes unseen.

    Args:
        x: Matrices of shape ``(..., m, n)``.

    Returns:
        uint32 of shape ``(...)``.
    """
    kind = {16: jnp.uint16, 32: jnp.uint32, 64: jnp.uint32}[jnp.finfo(x.dtype).bits]
    bits = jax.lax.bitcast_convert_type(x, kind).astype(jnp.uint32)
    shape = bits.shape[x.ndim - 2 :]  # Halves of float64 stand in a last axis.
    place = jnp.arange(math.prod(shape), dtype=jnp.uint32).reshape(shape)
    mixed = hash_uint32(bits ^ (place * jnp.uint32(0x9E3779B9)))
    axes = tuple(range(x.ndim - 2, bits.ndim))
    return jnp.sum(mixed, axis=axes, dtype=jnp.uint32)
