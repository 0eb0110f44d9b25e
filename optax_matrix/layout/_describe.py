"""A table of which optimizer each leaf gets, and why."""

import dataclasses
from typing import Any

from optax_matrix.layout._doubts import doubts
from optax_matrix.layout._layout import make_layout
from optax_matrix.layout._rules import resolve
from optax_matrix.layout.paths import named_leaves
from optax_matrix.layout.zeros import zero_leaves


@dataclasses.dataclass(frozen=True)
class Row:
    """One leaf: path, shape, view ``batch x (out, in)``, groups, optimizer, reason."""

    leaf: str
    shape: tuple[int, ...]
    view: str
    group: str
    optimizer: str
    why: str


@dataclasses.dataclass(frozen=True)
class Description:
    """Rows of `describe`; prints as a table."""

    rows: tuple[Row, ...]

    def __str__(self) -> str:
        header = tuple(f.name for f in dataclasses.fields(Row))
        table = [header, *(tuple(map(str, dataclasses.astuple(r))) for r in self.rows)]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        return "\n".join(
            "  ".join(map(str.ljust, line, widths)).rstrip() for line in table
        )


def describe(
    params: Any,
    dimension_numbers: Any = None,
    *,
    matrix: str = "matrix",
    other: str = "other",
    max_batch: int | None = None,
) -> Description:
    """Lists for every leaf whether and how it is viewed as matrices, and why.

    ``all zeros`` marks leaves with a matrix of zeros: `poet` and `oft` never move it.

    Args:
        params: Parameters, or their shapes.
        dimension_numbers: As in `on_matrices`.
        matrix: Name to print for the optimizer of the matrices.
        other: Name to print for the optimizer of the other leaves.
        max_batch: As in `on_matrices`.

    Returns:
        The rows; `print` shows a table.

    Examples:
        >>> import jax.numpy as jnp
        >>> params = {"up": {"kernel": jnp.ones((3, 5)), "bias": jnp.ones(5)}}
        >>> print(describe(params, matrix="muoneq", other="adamw"))
        leaf       shape   view       group            optimizer  why
        up/bias    (5,)    -          -                adamw      a vector
        up/kernel  (3, 5)  1x (5, 3)  5x3-in@969525da  muoneq     kernel (in, out)
    """
    layout = make_layout(params, dimension_numbers, max_batch)
    groups: dict[str, list[str]] = {}
    for name, group in layout.groups.items():
        for member in group.members:
            groups.setdefault(member.path, []).append(name)

    leaves = named_leaves(params)
    zeros = zero_leaves(leaves, layout.views)
    doubted = doubts(params, resolve(dimension_numbers, params))

    def row(path: str, leaf: Any) -> Row:
        shape = tuple(leaf.shape)
        but = f", but {doubted[path]}" if path in doubted else ""
        if path in layout.others:
            return Row(path, shape, "-", "-", other, layout.others[path] + but)
        view = layout.views[path]
        names = ", ".join(dict.fromkeys(groups[path]))
        why = layout.reasons[path] + but + ("; all zeros" if path in zeros else "")
        return Row(path, shape, str(view), names, matrix, why)

    return Description(tuple(row(path, leaf) for path, leaf in leaves.items()))
