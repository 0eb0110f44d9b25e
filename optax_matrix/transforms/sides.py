"""The sides of a matrix: which of them a block works on, and in which orientation.

A side is ``"out"`` (the rows) or ``"in"`` (the columns). ``"short"`` and ``"long"``
choose one of them by the shape. A block that works on one side sees that side as the
rows: if it is the columns, matrices are transposed on the way in and out.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp

from optax_matrix._arguments import check_choice
from optax_matrix._surroundings.layouts import of_layout
from optax_matrix._surroundings.worked_sides import note_sides
from optax_matrix.linalg.scale import widened

MatrixSide = Literal["out", "in", "short", "both"]
ProjectedSide = Literal["out", "in", "short", "long"]
_SIDES = "out", "in", "short", "long", "both", "none"


def check_side(name: str, value: Any) -> None:
    """Raises unless a value is a `MatrixSide`, or a dict of them or ``"none"``.

    A function of the layout passes. The dict that it returns is checked in a step.
    """
    names = get_args(MatrixSide)
    if not callable(value):
        _check_names(name, value, names, (*names, "none"))


def check_projected_side(name: str, value: Any) -> None:
    """Raises unless a value is a `ProjectedSide`, or a dict of them."""
    names = get_args(ProjectedSide)
    _check_names(name, value, names, names)


def _check_names(
    name: str, value: Any, choices: Collection[str], choices_of_leaves: Collection[str]
) -> None:
    if isinstance(value, str):
        check_choice(name, value, choices)
    elif isinstance(value, Mapping):
        for of_leaf in value.values():
            check_choice(name, of_leaf, choices_of_leaves)
    else:
        raise ValueError(
            f"`{name}` must be one of {', '.join(choices)}, or a dict with one of them "
            f"for each leaf, got {value!r}; 'short' works for every matrix."
        )


SidesOfLayout = Callable[[Any], Mapping[str, str]]
MatrixSides = Annotated[MatrixSide | Mapping[str, str] | SidesOfLayout, check_side]
ProjectedSides = Annotated[ProjectedSide | Mapping[str, str], check_projected_side]


class Pair(NamedTuple):
    """A value for the rows and one for the columns of a stack.

    Attributes:
        rows: The value for the rows; None if there is none.
        cols: The value for the columns; None if there is none.
    """

    rows: Any
    cols: Any


@dataclasses.dataclass(frozen=True)
class SideView:
    """How a block sees a stack: transposed or not, and which sides it works on."""

    transposed: bool
    rows: bool
    cols: bool

    @property
    def name(self) -> str:
        """The side that this comes to."""
        if not self.rows:
            return "none"
        return "both" if self.cols else "in" if self.transposed else "out"

    def turn(self, x: jax.Array) -> jax.Array:
        """Brings a stack into this view, or back."""
        return x.mT if self.transposed else x

    def pair(self, f: Callable, x: Any, old: Pair | None = None) -> Pair:
        """``f`` of x or ``x.mT``, and an old value, for each side of the view."""
        rows, cols = ((), ()) if old is None else ((old.rows,), (old.cols,))
        return Pair(
            f(x, *rows) if self.rows else None, f(x.mT, *cols) if self.cols else None
        )


def side_views(side: Any, tree: Any) -> Any:
    """The `SideView` of every matrix; a single side becomes the rows."""
    views = _views(of_layout("side", side), tree)
    note_sides(jax.tree.map(lambda view: view.name, views))
    return views


def _views(side: Any, tree: Any) -> Any:
    if isinstance(side, str):
        return jax.tree.map(lambda x: _view(side, x.shape), tree)
    try:
        of = lambda name: lambda x: _view(side[name], x.shape)
        return {name: jax.tree.map(of(name), x) for name, x in tree.items()}
    except (AttributeError, KeyError):
        raise ValueError(
            "`side` must be one of the names that the block takes, or a dict with one "
            f"of them for each leaf, got {side!r} for {jax.tree.structure(tree)}."
        ) from None


def turned(views: Any, tree: Any) -> Any:
    """A tree of stacks as a block sees them, at least float32; None for None."""
    if tree is None:
        return None
    wide = jax.tree.map(widened, tree)
    return jax.tree.map(lambda v, x: v.turn(x), views, wide)


def turned_zeros(views: Any, tree: Any) -> Any:
    """Zeros in the shapes and dtypes of `turned`; each array is a new one."""
    return jax.tree.map(lambda v, x: v.turn(jnp.zeros_like(widened(x))), views, tree)


def turned_back(views: Any, tree: Any, like: Any) -> Any:
    """Inverts `turned`, in the dtypes of `like`."""
    back = lambda v, x, y: v.turn(x).astype(y.dtype)
    return jax.tree.map(back, views, tree, like)


def _view(side: str, shape: tuple[int, ...]) -> SideView:
    if len(shape) < 2:
        raise ValueError(
            f"leaves must be matrices (..., m, n), got shape {shape}; give the other "
            "leaves to another optimizer (`on_matrices`), or add an axis."
        )
    if side not in _SIDES:
        raise ValueError(
            f"`side` must be one of {', '.join(_SIDES)}, got {side!r} for matrices "
            f"(..., {shape[-2]}, {shape[-1]}); correct the dict, or the function of "
            "the layout that returns it."
        )
    rows, cols = shape[-2:]
    turned = {"in": True, "short": rows > cols, "long": rows < cols}
    return SideView(turned.get(side, False), side != "none", side == "both")
