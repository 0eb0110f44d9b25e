"""The bits of bfloat16 weights, for `stochastic_rounding` and `store_remainders`."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from optax_matrix._paths import map_with_keys, path_name
from optax_matrix.linalg.scale import widened


def is_half(w: Any) -> bool:
    """Whether a leaf is bfloat16; other dtypes of half precision are refused."""
    dtype = jnp.dtype(w.dtype)
    floating = jnp.issubdtype(dtype, jnp.floating)
    if floating and dtype.itemsize < 4 and dtype != jnp.bfloat16:
        raise ValueError(
            f"weights must be bfloat16 or at least float32, got {dtype}; cast them to "
            "bfloat16, which has the range of float32."
        )
    return dtype == jnp.bfloat16


def wide(tree: Any) -> Any:
    """A tree with leaves of half precision in float32."""
    return jax.tree.map(widened, tree)


def bits_of(x: jax.Array) -> jax.Array:
    """Float32 as uint32; the upper half is bfloat16, rounded towards zero."""
    return jax.lax.bitcast_convert_type(x.astype(jnp.float32), jnp.uint32)


def from_bits(bits: jax.Array) -> jax.Array:
    """The inverse of `bits_of`."""
    return jax.lax.bitcast_convert_type(bits, jnp.float32)


def upper_half(bits: jax.Array) -> jax.Array:
    """The bits of the bfloat16 number with this upper half."""
    return bits & jnp.uint32(0xFFFF0000)


def finished(step: Callable[..., Any], updates: Any, *trees: Any) -> Any:
    """``step(path, update, leaf, ...)`` for every leaf that has an update."""

    def one(keys: Any, update: Any, *leaves: Any) -> Any:
        return None if update is None else step(path_name(keys), update, *leaves)

    return map_with_keys(one, updates, *trees, is_leaf=lambda x: x is None)


def require_params(params: Any, what: str = "rounded") -> None:
    """ValueError without the weights that are to be rounded, or averaged."""
    if params is None:
        raise ValueError(
            f"`params` must be passed to `update`, because the weights are {what}; "
            "call tx.update(updates, state, params)."
        )
