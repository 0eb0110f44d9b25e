"""Statistics of matrices: arrays of their sides, for each parameter of a tree.

A statistic with the sides ``("in", "in")`` of a kernel is a square array of its inputs,
such as their second moment; one without sides is a number. In front stand the batch
axes of the parameter, in its order: layers, experts, heads.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from optax_matrix.matrices.view import MatrixView, Piece, Side

Sides = tuple[Side, ...] | None
"""Sides of the last axes; None for an array in the shape of the parameter itself."""

_MOST = 2


def as_forms(statistics: Any) -> dict[str, Sides]:
    """The argument ``statistics`` of `on_matrices`, checked."""
    if statistics is None:
        return {}
    if not isinstance(statistics, Mapping):
        raise ValueError(
            "`statistics` must be a dict of sides by the name of an argument, as in "
            f"{{'second_moments': ('in', 'in')}}, got {statistics!r}."
        )
    return {name: _form(name, sides) for name, sides in statistics.items()}


def _form(name: Any, sides: Any) -> Sides:
    if not isinstance(name, str) or name in ("updates", "state", "params", "gradient"):
        raise ValueError(
            "`statistics` must name extra arguments of `update`, such as "
            f"'second_moments', got {name!r}."
        )
    if sides is None:
        return None
    known = isinstance(sides, Sequence) and set(sides) <= {"out", "in"}
    if not known or isinstance(sides, str) or len(sides) > _MOST:
        raise ValueError(
            "`statistics` must have for each name a tuple of at most two sides, 'out' "
            "or 'in', or None for arrays in the shape of the parameter, got "
            f"{sides!r} for {name!r}; () is one number for each matrix."
        )
    return tuple(sides)


def shape_of(view: MatrixView, sides: Sides) -> tuple[int, ...]:
    """The shape of the statistic of a whole leaf."""
    if sides is None:
        return view.shape
    batch = [view.shape[a] for a in view.batch_axes]
    return (*batch, *_sizes(sides, view.rows, view.cols))


def shape_of_piece(piece: Piece, sides: Sides) -> tuple[int, ...]:
    """The shape of the statistic of one matrix."""
    return _sizes(("out", "in") if sides is None else sides, piece.rows, piece.cols)


def _sizes(sides: tuple[Side, ...], rows: int, cols: int) -> tuple[int, ...]:
    return tuple([rows if side == "out" else cols for side in sides])


def to_pieces(view: MatrixView, sides: tuple[Side, ...], x: Array) -> list[Array]:
    """Stacked statistics ``(k, ...)`` of leaves, for each piece ``(k * count, ...)``.

    Of a side that is cut into sections each matrix has its own section; of a statistic
    of two such sides it has the block on the diagonal.
    """
    x = x.reshape(-1, *_sizes(sides, view.rows, view.cols))
    rows = _sections(view.output_sections, view.rows)
    cols = _sections(view.reduction_sections, view.cols)
    found = []
    for band in itertools.product(rows, cols):
        each = []
        for place in itertools.product(*band):
            own = dict(zip(("out", "in"), place, strict=True))
            each.append(x[(slice(None), *(slice(*own[side]) for side in sides))])
        whole = each[0] if len(each) == 1 else jnp.stack(each, 1)
        found.append(whole.reshape(-1, *each[0].shape[1:]))
    return found


def _sections(sections: int | tuple[int, ...], size: int) -> list[list[Any]]:
    """Where the sections of a side start and stop; those of one piece together."""
    if isinstance(sections, int):
        step = size // sections
        return [[(i, i + step) for i in range(0, size, step)]]
    ends = list(itertools.accumulate(sections, initial=0))
    return [[ends_of] for ends_of in itertools.pairwise(ends)]
