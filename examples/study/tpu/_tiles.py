"""Matrices in tiles, as kernels for TPUs take them."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from optax_matrix.linalg.pallas import padded, unfolded

_ONE_PASS = ("default", "fastest", "bfloat16")


def tile_of(side: int, widths: Sequence[int]) -> int:
    """The width that pads a side least; of several the first one."""
    return min(widths, key=lambda width: padded(side, width))


def like(x: Array, f: Callable[[Array], Array]) -> Any:
    """Shape, dtype and varying mesh axes of a result."""
    return jax.eval_shape(f, x)


def part(i: Array, size: int) -> Any:
    """The i-th slice of this size."""
    from jax.experimental import pallas as pl

    return pl.ds(pl.multiple_of(i * size, size), size)


def dot(x: Array, y: Array) -> Array:
    """Multiply tiles on a TPU and accumulate in float32.

    Of float32 factors kernels know one pass in bfloat16 and the full precision; they
    take the latter if JAX is asked for more than one pass.
    """
    asked = getattr(jax.config, "jax_default_matmul_precision")  # noqa: B009
    one_pass = x.dtype == jnp.bfloat16 or asked in (None, *_ONE_PASS)
    precision = jax.lax.Precision.DEFAULT if one_pass else jax.lax.Precision.HIGHEST
    return jnp.dot(x, y, precision=precision, preferred_element_type=jnp.float32)


def ones(x: Array, first: Any = 0) -> Array:
    """Rows of the identity from the first one on, in the shape and dtype of x."""
    row, column = (jax.lax.broadcasted_iota(jnp.int32, x.shape, i) for i in (0, 1))
    return (row + first == column).astype(x.dtype)


def lower_tiles(tiles: int) -> int:
    """Tiles on and below the diagonal of a square of so many tiles a side."""
    return tiles * (tiles + 1) // 2


def lower_tile(k: Array, tiles: int) -> tuple[Array, Array]:
    """Row and column of such a tile by its number."""
    columns = (tiles + 1) // 2
    return unfolded(jax.lax.div(k, columns), jax.lax.rem(k, columns), tiles)
