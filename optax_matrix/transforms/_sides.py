"""Which sides of each matrix a block works on, and in which orientation."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax

from optax_matrix.transforms._checks import check_choice

SIDES = ("out", "in", "short", "both")
_RULE = (
    "`side` must be one of out, in, short, both, or a dict with one of them for each "
    "leaf"
)


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
        side: One of `SIDES`, or a dict of them, or of ``"none"``, for the leaves of a
            dict.
        tree: A tree of matrices ``(..., m, n)``.

    Returns:
        A tree of `View`. One side alone is the rows: ``"in"`` turns matrices.

    Raises:
        ValueError: If a side is unknown or missing, or a leaf has fewer than two axes.
    """
    if isinstance(side, str):
        return jax.tree.map(lambda x: _view(side, x.shape), tree)
    if not isinstance(tree, dict) or set(tree) - set(side):
        raise ValueError(f"{_RULE}, got {side!r} for {jax.tree.structure(tree)}.")
    return {name: _view(side[name], x.shape) for name, x in tree.items()}


def check_side(side: Any) -> None:
    """Raises unless ``side`` is one of `SIDES`, or a dict of them."""
    if not isinstance(side, str | Mapping):
        raise ValueError(f"{_RULE}, got {side!r}; 'short' suits every matrix.")
    if isinstance(side, str):
        check_choice("side", side, SIDES)
    else:
        for value in side.values():
            check_choice("side", value, (*SIDES, "none"))


def no_pair(x: Any) -> Pair:
    """Nothing for either side."""
    del x
    return Pair(None, None)


def _view(side: str, shape: tuple[int, ...]) -> View:
    check_choice("side", side, (*SIDES, "none"))
    if len(shape) < 2:
        raise ValueError(
            f"leaves must be matrices (..., m, n), got shape {shape}; leave the others "
            "to another optimizer (`on_matrices`), or add an axis."
        )
    if side == "short":
        side = "out" if shape[-2] <= shape[-1] else "in"
    return View(side == "in", side != "none", side == "both")
