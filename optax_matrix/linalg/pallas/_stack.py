"""Stacks of matrices in whole tiles, as kernels take them."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array


def padded(side: int, tile: int) -> int:
    """The least multiple of a tile's side that is no less than a matrix's."""
    return -(-side // tile) * tile


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


def lower_tiles(tiles: int) -> int:
    """Tiles on and below the diagonal of a square of so many tiles a side."""
    return tiles * (tiles + 1) // 2


def lower_tile(k: Array, tiles: int) -> tuple[Array, Array]:
    """Row and column of such a tile by its number."""
    columns = (tiles + 1) // 2
    return unfolded(jax.lax.div(k, columns), jax.lax.rem(k, columns), tiles)


def unfolded(r: Array, c: Array, tiles: int) -> tuple[Array, Array]:
    """Row and column of such a tile in the triangle, from those in a rectangle.

    The rectangle is the triangle, folded: ``(tiles + 1) // 2`` tiles wide.
    """
    even = 1 - tiles % 2
    below = r >= c + even
    i = jnp.where(below, r - even, tiles - 1 - r)
    return i, jnp.where(below, c, tiles - even - c)
