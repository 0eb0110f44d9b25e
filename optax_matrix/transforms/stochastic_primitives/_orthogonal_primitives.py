"""The fixed settings of the primitives of `spo`, and how they are built from Q."""

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
from optax_matrix.linalg.scale import widened

AXES = {"out": -2, "in": -1}


@dataclasses.dataclass(frozen=True)
class Primitives:
    """Which sides rotate, the size of their blocks, and the map that makes them.

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
        """Draws the permutations of each side after a given number of merges.

        Args:
            epoch: Number of merges so far, one for all matrices or ``(...)``.
            w: Matrices ``(..., m, n)``.
            ids: Identity of each matrix, uint32 ``(..., k)``.

        Returns:
            A dict from each side that rotates to its permutations.
        """
        return {
            side: draw_permutations(ids, w.shape[axis], self.seed, i, epoch)
            for i, (side, axis) in enumerate(AXES.items())
            if side in self.sides
        }

    def zeros(self, w: jax.Array) -> dict[str, jax.Array]:
        """The triangles that give identity rotations.

        Args:
            w: Matrices ``(..., m, n)``.

        Returns:
            A dict from each side that rotates to zeros ``(..., k, b (b - 1) / 2)``, at
            least float32.
        """
        grids = {side: self._grid(side, w) for side in self.sides}
        shape = lambda k, b: (*w.shape[:-2], k, triangle_size(b))
        return {s: jnp.zeros(shape(*g), widened(w).dtype) for s, g in grids.items()}

    def blocks(self, q: Mapping[str, jax.Array], w: jax.Array) -> dict[str, jax.Array]:
        """The orthogonal blocks that triangles represent.

        Args:
            q: Triangles ``(..., k, b (b - 1) / 2)`` for each side that rotates.
            w: Matrices ``(..., m, n)``; only their shape is used.

        Returns:
            A dict from each side to its blocks ``(..., k, b, b)``.

        Raises:
            ValueError: If the triangles were made for other blocks.
        """
        blocks = {}
        for side, triangles in q.items():
            k, b = self._grid(side, w)
            _check_shape(triangles, (k, triangle_size(b)), side)
            inside = free_entries(w.shape[AXES[side]], k, b)
            if not inside.all():  # The last block extends past the end of the side.
                triangles = jnp.where(inside, triangles, 0)
            blocks[side] = self.orthogonal(to_skew(triangles, b))
        return blocks

    def _grid(self, side: str, w: jax.Array) -> tuple[int, int]:
        return block_grid(w.shape[AXES[side]], self.sides[side], self.variant)


def _check_shape(triangles: jax.Array, shape: tuple[int, int], side: str) -> None:
    if triangles.shape[-2:] != shape:
        raise ValueError(
            f"`q` must hold triangles of shape {shape} for the side {side!r}, got "
            f"{triangles.shape[-2:]}; use states and parts only with the `variant` and "
            "the `block` that they were made with."
        )
