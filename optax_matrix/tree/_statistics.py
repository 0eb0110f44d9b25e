"""Extra arguments of `update` that are trees of the parameters."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from optax_matrix._paths import named_leaves
from optax_matrix.matrices.statistics import Sides, shape_of, shape_of_piece
from optax_matrix.matrices.view import MatrixView, Piece
from optax_matrix.stacks.layout import Group, Layout

Leaves = Mapping[str, Any]


def split_trees(
    forms: Mapping[str, Sides],
    views: Mapping[str, MatrixView],
    extra: Mapping[str, Any],
) -> tuple[dict[str, Leaves], dict[str, Any]]:
    """The matrices' leaves of the arguments that are trees, and all other arguments."""
    if not views:
        return {name: {} for name in forms}, dict(extra)
    missing = [name for name in forms if extra.get(name) is None]
    if missing:
        raise ValueError(
            f"`{missing[0]}` must be passed to `update`, since `statistics` names it; "
            f"call tx.update(updates, state, params, {missing[0]}=tree)."
        )
    trees: dict[str, Leaves] = {}
    others: dict[str, Any] = {}
    for name, value in extra.items():
        leaves = {} if value is None else named_leaves(value)
        if name in forms:
            _check(name, forms[name], leaves, views)
        if name in forms or _is_like(leaves, views):
            trees[name] = {path: jnp.asarray(leaves[path]) for path in views}
        else:
            others[name] = value
    return trees, others


def _is_like(leaves: Leaves, views: Mapping[str, MatrixView]) -> bool:
    """Whether a tree has an array in the shape of each matrix leaf."""
    shape = lambda path: getattr(leaves.get(path), "shape", None)
    return all(shape(path) == view.shape for path, view in views.items())


def _check(
    name: str, sides: Sides, leaves: Leaves, views: Mapping[str, MatrixView]
) -> None:
    for path, view in views.items():
        wanted, found = shape_of(view, sides), None
        if path in leaves:
            found = np.shape(leaves[path])
        if found != wanted:
            raise ValueError(
                f"`{name}` must have an array of shape {wanted} for the matrices of "
                f"{path!r}, got {'none' if found is None else found}; its sides are "
                f"{sides} in `statistics`, behind the batch axes of the parameter."
            )


def stand_ins(
    forms: Mapping[str, Sides], layout: Layout, seed: int = 0, loud: float = 1.0
) -> dict[str, dict[str, np.ndarray]]:
    """Statistics by name and stack, for trying a block; those of first matrices loud.

    Statistics of one side by itself are symmetric and positive definite.
    """
    rng = np.random.default_rng(seed)

    def of(group: Group, sides: Sides) -> np.ndarray:
        shape = shape_of_piece(Piece(1, group.rows, group.cols), sides)
        x = rng.standard_normal((group.count, *shape), np.float32)
        if sides is None:
            pass
        elif len(shape) == 2 and sides[0] == sides[1]:
            x = x @ x.swapaxes(1, 2) + np.eye(*shape, dtype=np.float32)
        else:
            x = np.abs(x)
        x[:1] *= loud
        return x

    groups = layout.groups.items()
    return {n: {name: of(g, sides) for name, g in groups} for n, sides in forms.items()}
