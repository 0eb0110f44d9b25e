"""What rotates a matrix in `spo`: on which sides, by blocks of which size, made how."""

import dataclasses
import numbers
from collections.abc import Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from optax_matrix.linalg import Orthogonal, to_skew
from optax_matrix.linalg.permuted_blocks import draw_permutations
from optax_matrix.linalg.scale import check_matrices, widened
from optax_matrix.linalg.skew import block_grid, free_entries, triangle_size

Variant = Literal["block", "full"]
RotatedSides = Literal["both", "in", "out"]
Reset = Literal["moments", "none"]
Block = int | float | Mapping[str, int | float]

AXES = {"out": -2, "in": -1}


@dataclasses.dataclass(frozen=True)
class Primitives:
    """The map from triangles to rotations: the ``block`` of each side, and the kernel.

    It gives dicts by side, ``"out"`` and ``"in"``, with entries for those that rotate.
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
        """The permutations after ``epoch`` merges, a number or ``(...)``."""
        check_matrices(w)
        return {
            side: draw_permutations(ids, w.shape[axis], self.seed, i, epoch)
            for i, (side, axis) in enumerate(AXES.items())
            if side in self.sides
        }

    def zeros(self, w: jax.Array) -> dict[str, jax.Array]:
        """Triangles ``(..., k, b (b - 1) / 2)`` of identity rotations of ``w``."""
        grids = {side: self._grid(side, w) for side in self.sides}
        shape = lambda k, b: (*w.shape[:-2], k, triangle_size(b))
        return {s: jnp.zeros(shape(*g), widened(w).dtype) for s, g in grids.items()}

    def blocks(self, q: Mapping[str, jax.Array], w: jax.Array) -> dict[str, jax.Array]:
        """The orthogonal blocks ``(..., k, b, b)`` that the triangles represent."""
        blocks = {}
        for side, triangles in q.items():
            k, b = self._grid(side, w)
            if triangles.shape[-2:] != (k, triangle_size(b)):
                raise ValueError(
                    f"`q` must hold triangles of shape {(k, triangle_size(b))} for the "
                    f"side {side!r}, got {triangles.shape[-2:]}; use states and parts "
                    "only with the `variant` and the `block` that they were made with."
                )
            inside = free_entries(w.shape[AXES[side]], k, b)
            if not inside.all():  # The last block extends past the end of the side.
                triangles = jnp.where(inside, triangles, 0)
            blocks[side] = self.orthogonal(to_skew(triangles, b))
        return blocks

    def _grid(self, side: str, w: jax.Array) -> tuple[int, int]:
        return block_grid(w.shape[AXES[side]], self.sides[side], self.variant)


def rotated_blocks(
    block: Block, sides: RotatedSides, variant: Variant
) -> dict[str, int | float]:
    """The block size of each side that rotates; ValueError if it is out of range."""
    rotated = ("out", "in") if sides == "both" else (sides,)
    if not isinstance(block, Mapping):
        block = dict.fromkeys(rotated, block)
    if set(block) != set(rotated):
        raise ValueError(
            f"`block` must name the sides that rotate, {', '.join(rotated)}, got "
            f"{sorted(block)}; pass one number for all of them, or change `sides`."
        )
    for value in block.values():
        _check_block(value, variant)
    return {side: block[side] for side in rotated}


def relative_size(block: Any) -> float:
    """Side of the largest block, relative to the paper's largest (256 or 0.5).

    It is 1 for what `spo` refuses.
    """
    sides = block.values() if isinstance(block, Mapping) else [block]
    fractions = [2 * b for b in sides if isinstance(b, float)]
    sizes = [int(b) / 256 for b in sides if isinstance(b, numbers.Integral)]
    return max(fractions + sizes, default=1.0)


def _check_block(block: Any, variant: str) -> None:
    is_int = isinstance(block, numbers.Integral) and not isinstance(block, bool)
    if is_int and int(block) >= 2:
        return
    if variant == "full" and isinstance(block, float) and 0 < block <= 1:
        return
    fraction = ", or a float in (0, 1] for a fraction of the side"
    raise ValueError(
        f"`block` must be an int of at least 2{fraction if variant == 'full' else ''}, "
        f"got {block!r}; a block of size 1 has nothing to train"
        + ("." if variant == "full" else ", fractions are for variant='full'.")
    )
