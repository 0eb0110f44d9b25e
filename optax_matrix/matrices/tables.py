"""Dimension numbers by path as a table, which outlives a trace and fits into JSON."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax

from optax_matrix.matrices.view import (
    MatrixDimensionNumbers,
    is_dimension_numbers,
    make_view,
)

_FIELDS = {
    field.name: field.default for field in dataclasses.fields(MatrixDimensionNumbers)
}
_AXES = "reduction_axis", "output_axis"
_ROOT = "params/"


class Entry(NamedTuple):
    """One row of a table that was read: the numbers, and of which shape, if known."""

    numbers: Any
    shape: tuple[int, ...] | None = None


def canonical(shape: Sequence[int], numbers: Any, path: str = "") -> Any:
    """Dimension numbers in the one form that is written of all equal ones."""
    if numbers is None:
        return None
    view = make_view(shape, numbers, path)
    one = lambda x: x[0] if isinstance(x, tuple) and len(x) == 1 else x
    whole = lambda x: 1 if isinstance(x, tuple) and len(x) == 1 else x
    return MatrixDimensionNumbers(
        one(view.reduction_axes),
        one(view.output_axes),
        whole(view.output_sections),
        whole(view.reduction_sections),
        view.residual,
        one(view.layer_axes),
    )


def table_of(rows: Mapping[str, tuple[Sequence[int], Any]]) -> dict[str, Any]:
    """Shapes and dimension numbers by path as a table."""

    def row(shape: Sequence[int], value: Any) -> dict[str, Any]:
        found = {name: getattr(value, name) for name in _FIELDS}
        as_list = lambda x: list(x) if isinstance(x, tuple) else x
        is_needed = lambda name: name in _AXES or found[name] != _FIELDS[name]
        numbers = {name: as_list(x) for name, x in found.items() if is_needed(name)}
        return {"shape": list(shape), **numbers}

    return {
        path: None if value is None else row(shape, canonical(shape, value, path))
        for path, (shape, value) in rows.items()
    }


def read_table(table: Any) -> tuple[tuple[str, Entry], ...]:
    """The entries of a table, with their paths; raises for anything else."""
    if not isinstance(table, Mapping):
        raise ValueError(
            "`table` must be a dict of dimension numbers by path, got "
            f"{type(table).__name__}."
        )
    return tuple((path, _read(path, row)) for path, row in table.items())


def _read(path: Any, row: Any) -> Entry:
    if not isinstance(path, str):
        raise ValueError(f"`table` must have paths as its keys, got {path!r}.")
    if row is None or is_dimension_numbers(row):
        return Entry(row)
    names = set(row) if isinstance(row, Mapping) else set()
    if not set(_AXES) <= names <= {*_FIELDS, "shape"}:
        raise ValueError(
            "`table` must have None or the fields of MatrixDimensionNumbers, with "
            f"reduction_axis and output_axis, for each path, got {row!r} for {path!r}."
        )
    as_tuple = lambda x: tuple(x) if isinstance(x, list) else x
    fields: dict[str, Any] = {name: as_tuple(x) for name, x in row.items()}
    shape = fields.pop("shape", None)
    try:
        numbers = MatrixDimensionNumbers(**fields)
        if shape is not None:
            make_view(shape, numbers, path)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"`table` must have numbers that fit, got {row!r} for {path!r}: {error}"
        ) from None
    return Entry(numbers, shape)


def place_in(known: Mapping[str, Any], path: str) -> str | None:
    """Under which path a leaf is known: with the root "params" of Linen or without."""
    bare = path.removeprefix(_ROOT)
    return next((p for p in (path, _ROOT + path, bare) if p in known), None)


def fits(shape: Sequence[int], known: Sequence[int] | None) -> bool:
    """Whether a leaf has the shape that is known of it, or is a shard of it.

    Inside `jax.shard_map` a program sees its own part of each array.
    """
    if known is None or tuple(shape) == tuple(known):
        return True
    if not jax.sharding.get_abstract_mesh().manual_axes or len(shape) != len(known):
        return False
    return not any(n % m for n, m in zip(known, shape, strict=True))


def refuse_leaf(where: str, path: str, leaf: Any, known: Any, remedy: str) -> None:
    """Raises for a leaf that is not known, or not in this shape, unless a vector."""
    shape = tuple(leaf.shape)
    if sum(n > 1 for n in shape) < 2:
        return
    has = f"no entry for {path!r} of shape {shape}"
    if known is not None:
        has = f"{path!r} with shape {tuple(known)}, not {shape}"
    raise ValueError(f"{where} must be of these parameters, but has {has}; {remedy}.")
