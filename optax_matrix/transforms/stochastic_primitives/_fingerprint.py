"""How `spo` notices that parameters were changed from outside.

It predicts, bit for bit, the parameters after an update is applied, and stores a
fingerprint of the prediction. At the next step it compares this fingerprint with that
of the actual parameters.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from optax_matrix._dtypes import is_tiny
from optax_matrix.linalg.random import hash_uint32


def update_towards(
    target: jax.Array, w: jax.Array, update_dtype: DTypeLike | None = None
) -> tuple[jax.Array, jax.Array]:
    """The update that moves parameters to a target, and the parameters after it.

    The target is in the working precision. The update is in the dtype of ``w``, rounded
    to ``update_dtype`` if that is narrower; what follows is rounded as
    `optax.apply_updates` computes it.
    """
    wide = w.astype(target.dtype)
    # The barrier keeps the two uses of the update from being computed twice.
    dtype = w.dtype
    if update_dtype is not None and jnp.dtype(update_dtype).itemsize < dtype.itemsize:
        dtype = update_dtype
    update = jax.lax.optimization_barrier(rounded(target - wide, dtype))
    return update.astype(w.dtype), rounded(wide + update, w.dtype).astype(w.dtype)


def rounded(x: jax.Array, dtype: Any) -> jax.Array:
    """Rounds to values of a narrower dtype, and keeps the dtype of ``x``.

    A compiler may remove a cast to another dtype and back. It does not remove this.
    """
    if jnp.dtype(dtype) == x.dtype:
        return x
    info = jnp.finfo(dtype)
    y = jax.lax.reduce_precision(x, int(info.nexp), int(info.nmant))
    if info.nexp == jnp.finfo(x.dtype).nexp:
        return y
    # `reduce_precision` flushes the subnormal numbers of float16 to zero.
    step = float(info.smallest_subnormal)
    small = jnp.abs(x) < float(info.smallest_normal)
    return jnp.where(small, jnp.round(x / step) * step, y)


def fingerprint(x: jax.Array) -> jax.Array:
    """A hash of the bits of every matrix, uint32 ``(...)``, to detect changes.

    It sums integers modulo 2^32, so that it depends neither on the order of the
    summation nor on sharding. One change in 2^32 goes undetected.
    """
    if is_tiny(x.dtype):
        raise ValueError(
            f"`params` must have 16 bits or more, got {x.dtype}, in which rotated "
            "weights lose their singular values; train them in bfloat16 or float32."
        )
    kind = {16: jnp.uint16, 32: jnp.uint32, 64: jnp.uint32}[jnp.finfo(x.dtype).bits]
    # Mixed with its place, so that two entries that change places are detected, too.
    bits = jax.lax.bitcast_convert_type(x, kind).astype(jnp.uint32)
    shape = bits.shape[x.ndim - 2 :]  # float64 has its two halves in a last axis.
    place = jnp.arange(math.prod(shape), dtype=jnp.uint32).reshape(shape)
    mark = jnp.broadcast_to(place * jnp.uint32(0x9E3779B9), bits.shape)
    mixed = hash_uint32(bits ^ mark)
    axes = tuple(range(x.ndim - 2, bits.ndim))
    return jnp.sum(mixed, axis=axes, dtype=jnp.uint32)
