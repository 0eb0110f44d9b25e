"""POET's primitives on the leaves of a parameter tree, and on the pieces of a leaf."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from optax_matrix.linalg.permuted_blocks import materialize, permute
from optax_matrix.matrices.view import MatrixView
from optax_matrix.stacks.identities import ids_of_pieces
from optax_matrix.transforms.stochastic_primitives.primitives import Primitives
from optax_matrix.transforms.turns import select

Sides = dict[str, Array]
Views = Mapping[str, MatrixView]


def zeros(primitives: Primitives, view: MatrixView, dtype: Any) -> list[Sides]:
    """The triangles of identity rotations, for each piece of a leaf."""

    def of_piece(piece: Any) -> Sides:
        like = jax.ShapeDtypeStruct((piece.count, piece.rows, piece.cols), dtype)
        shapes = jax.eval_shape(primitives.zeros, like)
        return {side: jnp.zeros(x.shape, x.dtype) for side, x in shapes.items()}

    return list(map(of_piece, view.pieces))


def draw(primitives: Primitives, views: Views, merges: Any) -> dict[str, list[Sides]]:
    """The permutations of all leaves, by path, piece and side.

    They follow from the numbers of merges, by path and piece, one for each matrix.
    Those of all matrices of one shape are drawn together, by a single sort.
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
        epochs = jnp.concatenate([merges[path][i] for path, i, _ in pool])
        drawn = primitives.draw(epochs, like, ids)
        ends = np.cumsum([len(own) for *_, own in pool])
        for (path, i, own), end in zip(pool, ends, strict=True):
            part = slice(end - len(own), end)
            perms[path][i] = {side: perm[part] for side, perm in drawn.items()}
    return perms


def materialize_leaf(
    primitives: Primitives,
    view: MatrixView,
    in_turn: bool,
    leaf: Array,
    triangles: list[Sides],
    perms: list[Sides],
    new: list[Sides] | None = None,
    due: list[Array] | None = None,
) -> Array:
    """The weights of a leaf of permuted matrices W_0, in its shape and dtype.

    Where ``due``, the result has its rows and columns in the order of ``new``; other
    matrices stay W_0. ``in_turn`` computes one matrix after the other and needs less
    memory. In a slice of scanned layers, triangles and permutations may lack the axis
    that counts the matrices.
    """

    def make(parts: tuple) -> Array:
        frame, q, perms, new, due = parts
        w = materialize(frame, primitives.blocks(q, frame), perms)
        return w if new is None else select(due, permute(w, new), frame)

    # Intermediate values are recomputed in the backward pass instead of being stored.
    one_by_one = lambda parts: jax.lax.map(jax.checkpoint(make), parts)
    out = []
    for i, frame in enumerate(view.to_matrices(leaf[None])):
        q = {side: _many(x, len(frame), 2) for side, x in triangles[i].items()}
        order = {side: _many(x, len(frame), 1) for side, x in perms[i].items()}
        parts = (frame, q, order, new and new[i], due and due[i])
        out.append((one_by_one if in_turn and len(frame) > 1 else make)(parts))
    return view.from_matrices(out)[0]


def permute_leaf(view: MatrixView, leaf: Array, perms: list[Sides]) -> Array:
    """The matrices of a leaf with rows and columns permuted."""
    pieces = view.to_matrices(leaf[None])
    new = [permute(x, p) for x, p in zip(pieces, perms, strict=True)]
    return view.from_matrices(new)[0]


def _many(x: Array, count: int, ndim: int) -> Array:
    return x.reshape(count, *x.shape[x.ndim - ndim :])
