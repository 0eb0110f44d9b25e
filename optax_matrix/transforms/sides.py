"""The sides of a matrix: which of them a block works on, and in which orientation.

A side is ``"out"`` (the rows) or ``"in"`` (the columns). ``"short"`` and ``"long"``
choose one of them by the shape. A block that works on one side sees it as the rows, so
that matrices are transposed where it is the columns.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal, NamedTuple, get_args

import jax

from optax_matrix.arguments import check_choice

MatrixSide = Literal["out", "in", "short", "both"]
ProjectedSide = Literal["out", "in", "short", "long"]
MATRIX_SIDES: tuple[str, ...] = get_args(MatrixSide)
PROJECTED_SIDES: tuple[str, ...] = get_args(ProjectedSide)


class Pair(NamedTuple):
    """Something for the rows and for the columns of a stack; None for a side without.

    Attributes:
        rows: That of the rows.
        cols: That of the columns.
    """

    rows: Any
    cols: Any


@dataclasses.dataclass(frozen=True)
class View:
    """How a block sees a stack: transposed or not, and which sides it works on."""

    transposed: bool
    rows: bool
    cols: bool

    def turn(self, x: jax.Array) -> jax.Array:
        """Brings a stack into this view, or back."""
        return x.mT if self.transposed else x

    def pair(self, f: Callable, x: jax.Array, old: Pair | None = None) -> Pair:
        """``f`` of the rows and of the columns (as rows) that the block works on."""
        rows, cols = ((), ()) if old is None else ((old.rows,), (old.cols,))
        return Pair(
            f(x, *rows) if self.rows else None, f(x.mT, *cols) if self.cols else None
        )


def views_of(side: Any, tree: Any) -> Any:
    """The view of every leaf.

    Args:
        side: The name of a side, or a dict of names, or of ``"none"``, for the leaves
            of a dict; `check_side` checks which.
        tree: A tree of matrices ``(..., m, n)``.

    Returns:
        A tree of `View`. One side alone is the rows: ``"in"`` turns matrices.

    Raises:
        ValueError: If a side is unknown or missing, or a leaf has fewer than two axes.
    """
    if isinstance(side, str):
        return jax.tree.map(lambda x: _view(side, x.shape), tree)
    if not isinstance(tree, dict) or set(tree) - set(side):
        raise ValueError(
            "`side` must be one of the names that the block takes, or a dict with one "
            f"of them for each leaf, got {side!r} for {jax.tree.structure(tree)}."
        )
    return {name: _view(side[name], x.shape) for name, x in tree.items()}


def check_side(side: Any, choices: Collection[str] = MATRIX_SIDES) -> None:
    """Raises unless ``side`` is one of the choices, or a dict of them.

    Args:
        side: The argument of a block.
        choices: `MATRIX_SIDES`, to which a dict may add ``"none"``, or
            `PROJECTED_SIDES`.

    Raises:
        ValueError: If it is something else.
    """
    if isinstance(side, str):
        check_choice("side", side, choices)
    elif isinstance(side, Mapping):
        none = () if choices == PROJECTED_SIDES else ("none",)
        for value in side.values():
            check_choice("side", value, (*choices, *none))
    else:
        raise ValueError(
            f"`side` must be one of {', '.join(choices)}, or a dict with one of them "
            f"for each leaf, got {side!r}; 'short' suits every matrix."
        )


def no_pair(x: Any) -> Pair:
    """Nothing for either side."""
    del x
    return Pair(None, None)


def _view(side: str, shape: tuple[int, ...]) -> View:
    if len(shape) < 2:
        raise ValueError(
            f"leaves must be matrices (..., m, n), got shape {shape}; leave the others "
            "to another optimizer (`on_matrices`), or add an axis."
        )
    rows, cols = shape[-2:]
    turned = {"in": True, "short": rows > cols, "long": rows < cols}
    return View(turned.get(side, False), side != "none", side == "both")
