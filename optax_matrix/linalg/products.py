"""Matrix products at three precisions, and one that exploits symmetry."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array

from optax_matrix.linalg.scale import work_dtype

Product = Callable[[Array, Array], Array]


def dot(x: Array, y: Array) -> Array:
    """Multiply; accumulate and return at least float32."""
    return jnp.matmul(x, y, preferred_element_type=work_dtype(x.dtype))


def precise_dot(x: Array, y: Array) -> Array:
    """Multiply; float32 operands are not rounded to a single bfloat16 pass."""
    return jnp.matmul(
        x,
        y,
        precision=jax.lax.Precision.HIGH,
        preferred_element_type=work_dtype(x.dtype),
    )


def full_dot(x: ArrayLike, y: ArrayLike) -> Array:
    """Multiply in the full precision of the operands, on every platform."""
    return jnp.matmul(x, y, precision=jax.lax.Precision.HIGHEST)


def times(x: Array, v: Array) -> Array:
    """Multiply matrices by vectors ``(..., n)``, in full precision."""
    return jnp.einsum("...mn,...n->...m", x, v, precision=jax.lax.Precision.HIGHEST)


def blocked_symmetric_dot(x: Array, y: Array) -> Array:
    """Multiply two matrices whose product is symmetric, with a quarter less work.

    Three of the four block products are computed; the fourth is the transpose of one
    of them.
    """
    h = x.shape[-2] // 2
    left, right = y[..., :h], y[..., h:]
    below = precise_dot(x[..., h:, :], left)
    top = [precise_dot(x[..., :h, :], left), below.mT]
    bottom = [below, precise_dot(x[..., h:, :], right)]
    rows = [jnp.concatenate(row, axis=-1) for row in (top, bottom)]
    return jnp.concatenate(rows, axis=-2)
