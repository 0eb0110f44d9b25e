"""Matrices cut into blocks, from the first row and column on.

The blocks of one shape are a stack, with the axes of the matrices in front: whole
blocks, what remains on the right and at the bottom, and the last corner. A matrix
without a side above the size stays as it is.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from optax_matrix._mesh import unsplit

# NNX restores a state whose tuples have become dicts by reading every key of a path
# that can be read as a number as one, so that this must not be a number.
_NAME = "blocks_{}{}"


def in_blocks_of(size: int | None, tree: Any) -> Any:
    """Cuts the matrices of a tree; one that is cut becomes a dict of stacks."""
    return jax.tree.map(partial(cut, size), tree)


def cut(size: int | None, x: jax.Array) -> Any:
    """Cuts matrices ``(..., m, n)`` into stacks ``(..., blocks, rows, cols)``."""
    if size is None or max(x.shape[-2:]) <= size:
        return x
    if any(side % size for side in x.shape[-2:]):
        x = unsplit(x, axes=2)
    found = {}
    for i, rows in enumerate(_runs(size, x.shape[-2])):
        for j, cols in enumerate(_runs(size, x.shape[-1])):
            part = x[..., rows[0] : rows[1], cols[0] : cols[1]]
            found[_NAME.format(i, j)] = _stacked(part, rows[2], cols[2])
    return found


def joined(size: int | None, blocks: Any, shape: tuple[int, ...]) -> jax.Array:
    """Inverts `cut` for matrices of this shape."""
    if size is None or max(shape[-2:]) <= size:
        return blocks
    rows, cols = (_runs(size, side) for side in shape[-2:])
    strips = [
        jnp.concatenate(
            [_whole(blocks[_NAME.format(i, j)], r, c) for j, c in enumerate(cols)],
            axis=-1,
        )
        for i, r in enumerate(rows)
    ]
    return jnp.concatenate(strips, axis=-2)


def _runs(size: int, side: int) -> list[tuple[int, int, int]]:
    """Where equal pieces of a side start and stop, and their length."""
    whole = side // size * size
    runs = (0, whole, size), (whole, side, side - whole)
    return [run for run in runs if run[0] < run[1]]


def _stacked(x: jax.Array, rows: int, cols: int) -> jax.Array:
    """A region as a stack of its blocks, row after row."""
    *batch, m, n = x.shape
    x = x.reshape(*batch, m // rows, rows, n // cols, cols).swapaxes(-3, -2)
    return x.reshape(*batch, m // rows * (n // cols), rows, cols)


def _whole(x: jax.Array, down: tuple, across: tuple) -> jax.Array:
    """Inverts `_stacked` for the region of these runs."""
    *batch, _, rows, cols = x.shape
    m, n = (run[1] - run[0] for run in (down, across))
    x = x.reshape(*batch, m // rows, n // cols, rows, cols).swapaxes(-3, -2)
    return x.reshape(*batch, m, n)
