"""The primitives of `spo`, with what is fixed about them."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from optax_matrix.linalg import (
    Orthogonal,
    block_grid,
    draw_permutations,
    free_entries,
    to_skew,
    triangle_size,
)
from optax_matrix.transforms.numerics import widened

AXES = {"out": -2, "in": -1}


@dataclasses.dataclass(frozen=True)
class Primitives:
    """Which sides rotate, in blocks of which side, made by which map.

    Attributes:
        sides: The `block` of every side that rotates, as in `linalg.block_grid`.
        variant: ``"block"`` or ``"full"``.
        orthogonal: Kernel from skew to orthogonal blocks.
        seed: Seed of the draws.
    """

    sides: Mapping[str, Any]
    variant: str
    orthogonal: Orthogonal
    seed: int

    def __hash__(self) -> int:
        sides = tuple(self.sides.items())
        return hash((sides, self.variant, self.orthogonal, self.seed))

    def draw(
        self, epoch: ArrayLike, w: jax.Array, ids: ArrayLike
    ) -> dict[str, jax.Array]:
        """Permutations of each side, after so many merges.

        Args:
            epoch: Number of merges so far.
            w: Matrices ``(..., m, n)``.
            ids: Identity of each, uint32 ``(..., k)``.

        Returns:
            Permutations by side.
        """
        return {
            side: draw_permutations(ids, w.shape[axis], self.seed, i, epoch)
            for i, (side, axis) in enumerate(AXES.items())
            if side in self.sides
        }

    def zeros(self, w: jax.Array) -> dict[str, jax.Array]:
        """Triangles of the identity.

        Args:
            w: Matrices ``(..., m, n)``.

        Returns:
            Zeros ``(..., k, b (b - 1) / 2)`` by side, at least float32.
        """
        grids = {side: self._grid(side, w) for side in self.sides}
        shape = lambda k, b: (*w.shape[:-2], k, triangle_size(b))
        return {s: jnp.zeros(shape(*g), widened(w).dtype) for s, g in grids.items()}

    def blocks(self, q: Mapping[str, jax.Array], w: jax.Array) -> dict[str, jax.Array]:
        """The orthogonal blocks that triangles stand for.

        Args:
            q: Triangles ``(..., k, b (b - 1) / 2)`` by side.
            w: Matrices ``(..., m, n)``, for their shape.

        Returns:
            Blocks ``(..., k, b, b)`` by side.

        Raises:
            ValueError: If the triangles are those of other blocks.
        """
        blocks = {}
        for side, triangles in q.items():
            k, b = self._grid(side, w)
            _check_shape(triangles, (k, triangle_size(b)), side)
            inside = free_entries(w.shape[AXES[side]], k, b)
            if not inside.all():  # The last block sticks out over the side.
                triangles = jnp.where(inside, triangles, 0)
            blocks[side] = self.orthogonal(to_skew(triangles, b))
        return blocks

    def _grid(self, side: str, w: jax.Array) -> tuple[int, int]:
        return block_grid(w.shape[AXES[side]], self.sides[side], self.variant)


def _check_shape(triangles: jax.Array, shape: tuple[int, int], side: str) -> None:
    if triangles.shape[-2:] != shape:
        raise ValueError(
            f"`q` must hold for the side {side!r} triangles of shape {shape}, got "
            f"{triangles.shape[-2:]}; states and parts belong to the `variant` and "
            "the `block` that they were made with."
        )
