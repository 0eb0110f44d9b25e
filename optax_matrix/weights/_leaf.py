"""The primitives of one leaf: what is drawn, trained and applied for its matrices."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from optax_matrix.layout import MatrixView
from optax_matrix.layout._map_matrices import ids_of_pieces
from optax_matrix.linalg._primitives import (
    block_grid,
    draw_permutations,
    free_entries,
    materialize,
    permute,
)
from optax_matrix.linalg._scale import work_dtype
from optax_matrix.linalg._skew import to_skew, triangle_size

Sides = dict[str, Array]
SIDE_NUMBERS = {"out": 0, "in": 1}


@dataclasses.dataclass(frozen=True)
class Primitives:
    """Of which kind they are.

    Attributes:
        variant: ``"full"`` or ``"block"``.
        block: Side of the blocks for each rotated side.
        orthogonal: Skew-symmetric to orthogonal blocks.
        seed: Of the permutations.
    """

    variant: str
    block: Mapping[str, int | float]
    orthogonal: Callable[[Array], Array]
    seed: int

    def grids(self, rows: int, cols: int) -> dict[str, tuple[int, int, int]]:
        """Per rotated side its size, the number of its blocks, and their side."""
        sizes = {"out": rows, "in": cols}
        return {
            side: (sizes[side], *block_grid(sizes[side], block, self.variant))
            for side, block in self.block.items()
        }

    def zeros(self, view: MatrixView, dtype: Any) -> list[Sides]:
        """Triangles of the identity, for each piece of a leaf."""
        return [
            {
                side: jnp.zeros((piece.count, k, triangle_size(b)), work_dtype(dtype))
                for side, (_, k, b) in self.grids(piece.rows, piece.cols).items()
            }
            for piece in view.pieces
        ]

    def draw(self, views: Mapping[str, MatrixView], merges: Any) -> dict[str, Any]:
        """Permutations of all leaves by path, piece and side after so many merges.

        Those of equal size are drawn together: one sort where there would be many.
        """
        perms: dict[str, Any] = {p: [{} for _ in v.pieces] for p, v in views.items()}
        pools: dict[tuple[str, int], list[tuple[Sides, np.ndarray]]] = {}
        for path, view in views.items():
            ids = ids_of_pieces(view, path)
            for piece, own, place in zip(view.pieces, ids, perms[path], strict=True):
                for side, (size, _, _) in self.grids(piece.rows, piece.cols).items():
                    pools.setdefault((side, size), []).append((place, own))
        for (side, size), pool in pools.items():
            ids = np.concatenate([own for _, own in pool])
            number = SIDE_NUMBERS[side]
            drawn = draw_permutations(ids, size, self.seed, number, merges)
            ends = np.cumsum([len(own) for _, own in pool])[:-1]
            for (place, _), part in zip(pool, jnp.split(drawn, ends), strict=True):
                place[side] = part
        return perms

    def turn(
        self,
        view: MatrixView,
        leaf: Array,
        triangles: list[Sides],
        perms: list[Sides],
        new: list[Sides] | None = None,
    ) -> Array:
        """The weights that a leaf of permuted matrices stands for.

        Args:
            view: View of the leaf.
            leaf: W_0, in the order of `perms`.
            triangles: The rotations of each piece. A slice of scanned layers may lack
                the axis of the matrices, here and in `perms`.
            perms: The permutations of each piece.
            new: Permutations into whose order the weights are brought, if any.

        Returns:
            An array of the leaf's shape and dtype.
        """
        out = []
        for i, frame in enumerate(view.to_matrices(leaf[None])):
            count, rows, cols = frame.shape
            blocks = {
                side: self._blocks(_many(triangles[i][side], count, 2), *grid)
                for side, grid in self.grids(rows, cols).items()
            }
            order = {side: _many(p, count, 1) for side, p in perms[i].items()}
            w = materialize(frame, blocks, order)
            out.append(permute(w, new[i]) if new else w)
        return view.from_matrices(out)[0]

    def _blocks(self, triangles: Array, n: int, k: int, b: int) -> Array:
        free = free_entries(n, k, b)
        return self.orthogonal(to_skew(jnp.where(free, triangles, 0), b))


def ordered(view: MatrixView, leaf: Array, perms: list[Sides]) -> Array:
    """A leaf with rows and columns in another order."""
    pieces = view.to_matrices(leaf[None])
    new = [permute(x, p) for x, p in zip(pieces, perms, strict=True)]
    return view.from_matrices(new)[0]


def _many(x: Array, count: int, ndim: int) -> Array:
    return x.reshape(count, *x.shape[x.ndim - ndim :])
