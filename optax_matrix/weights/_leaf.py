"""The primitives of a parameter tree, leaf by leaf and piece by piece."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from optax_matrix.layout import MatrixView
from optax_matrix.layout.groups import ids_of_pieces
from optax_matrix.linalg import materialize, permute
from optax_matrix.transforms.stochastic_primitives import Primitives

Sides = dict[str, Array]
Views = Mapping[str, MatrixView]


def zeros(primitives: Primitives, view: MatrixView, dtype: Any) -> list[Sides]:
    """Triangles of the identity, for each piece of a leaf."""

    def of_piece(piece: Any) -> Sides:
        like = jax.ShapeDtypeStruct((piece.count, piece.rows, piece.cols), dtype)
        shapes = jax.eval_shape(primitives.zeros, like)
        return {side: jnp.zeros(x.shape, x.dtype) for side, x in shapes.items()}

    return list(map(of_piece, view.pieces))


def draw(primitives: Primitives, views: Views, merges: Any) -> dict[str, list[Sides]]:
    """Permutations of all leaves by path, piece and side after so many merges.

    Matrices of one shape are drawn together: one sort where there would be many.
    """
    perms: dict[str, Any] = {p: [None] * len(v.pieces) for p, v in views.items()}
    pools: dict[tuple[int, int], list[tuple[str, int, np.ndarray]]] = {}
    for path, view in views.items():
        for i, ids in enumerate(ids_of_pieces(view, path)):
            shape = view.pieces[i].rows, view.pieces[i].cols
            pools.setdefault(shape, []).append((path, i, ids))
    for shape, pool in pools.items():
        ids = np.concatenate([own for *_, own in pool])
        like: Any = jax.ShapeDtypeStruct((len(ids), *shape), jnp.float32)
        drawn = primitives.draw(merges, like, ids)
        ends = np.cumsum([len(own) for *_, own in pool])
        for (path, i, own), end in zip(pool, ends, strict=True):
            part = slice(end - len(own), end)
            perms[path][i] = {side: perm[part] for side, perm in drawn.items()}
    return perms


def turn(
    primitives: Primitives,
    view: MatrixView,
    in_turn: bool,
    leaf: Array,
    triangles: list[Sides],
    perms: list[Sides],
    new: list[Sides] | None = None,
) -> Array:
    """The weights that a leaf of permuted matrices stands for.

    Args:
        primitives: What is fixed about the rotations.
        view: View of the leaf.
        in_turn: Whether matrices are made one after another, in less memory.
        leaf: W_0, in the order of `perms`.
        triangles: The rotations of each piece. A slice of scanned layers may lack the
            axis of the matrices, here and in `perms`.
        perms: The permutations of each piece.
        new: Permutations into whose order the weights are brought, if any.

    Returns:
        An array of the leaf's shape and dtype.
    """

    def make(parts: tuple) -> Array:
        frame, q, perms, new = parts
        w = materialize(frame, primitives.blocks(q, frame), perms)
        return w if new is None else permute(w, new)

    # What a matrix needs on the way is computed again for its gradient, and not kept.
    one_by_one = lambda parts: jax.lax.map(jax.checkpoint(make), parts)
    out = []
    for i, frame in enumerate(view.to_matrices(leaf[None])):
        q = {side: _many(x, len(frame), 2) for side, x in triangles[i].items()}
        order = {side: _many(x, len(frame), 1) for side, x in perms[i].items()}
        parts = (frame, q, order, new and new[i])
        out.append((one_by_one if in_turn and len(frame) > 1 else make)(parts))
    return view.from_matrices(out)[0]


def ordered(view: MatrixView, leaf: Array, perms: list[Sides]) -> Array:
    """A leaf with rows and columns in another order."""
    pieces = view.to_matrices(leaf[None])
    new = [permute(x, p) for x, p in zip(pieces, perms, strict=True)]
    return view.from_matrices(new)[0]


def _many(x: Array, count: int, ndim: int) -> Array:
    return x.reshape(count, *x.shape[x.ndim - ndim :])
