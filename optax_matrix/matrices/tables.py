"""Dimension numbers by path as a table, which outlives a trace and fits into JSON."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from optax_matrix.matrices.view import MatrixDimensionNumbers, is_dimension_numbers

_FIELDS = {
    field.name: field.default for field in dataclasses.fields(MatrixDimensionNumbers)
}
_AXES = "reduction_axis", "output_axis"


def table_of(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Dimension numbers by path as a table."""

    def row(value: Any) -> dict[str, Any]:
        found = {name: getattr(value, name, usual) for name, usual in _FIELDS.items()}
        as_list = lambda x: list(x) if isinstance(x, tuple) else x
        is_needed = lambda name: name in _AXES or found[name] != _FIELDS[name]
        return {name: as_list(x) for name, x in found.items() if is_needed(name)}

    return {path: None if x is None else row(x) for path, x in numbers.items()}


def read_table(table: Any) -> tuple[tuple[str, Any], ...]:
    """Pairs of path and dimension numbers; raises for anything else."""
    if not isinstance(table, Mapping):
        raise ValueError(
            "`table` must be a dict of dimension numbers by path, got "
            f"{type(table).__name__}."
        )
    return tuple((path, _read(path, row)) for path, row in table.items())


def _read(path: Any, row: Any) -> Any:
    if not isinstance(path, str):
        raise ValueError(f"`table` must have paths as its keys, got {path!r}.")
    if row is None or is_dimension_numbers(row):
        return row
    is_row = isinstance(row, Mapping) and set(_AXES) <= set(row) <= set(_FIELDS)
    if not is_row:
        raise ValueError(
            "`table` must have None or the fields of MatrixDimensionNumbers, with "
            f"reduction_axis and output_axis, for each path, got {row!r} for {path!r}."
        )
    as_tuple = lambda x: tuple(x) if isinstance(x, list) else x
    fields: dict[str, Any] = {name: as_tuple(x) for name, x in row.items()}
    return MatrixDimensionNumbers(**fields)
