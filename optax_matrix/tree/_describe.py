"""A table of which optimizer each leaf gets, and why."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import optax

from optax_matrix._arguments import is_function
from optax_matrix._paths import named_leaves
from optax_matrix._printed import Printed
from optax_matrix.matrices.decisions import decide, views_of
from optax_matrix.matrices.doubts import doubts
from optax_matrix.matrices.shares import shares
from optax_matrix.stacks.layout import group_matrices
from optax_matrix.stacks.placement import Placement
from optax_matrix.stacks.zeros import zero_leaves
from optax_matrix.tree._asked_sides import without_sides


@dataclasses.dataclass(frozen=True)
class Row:
    """One leaf of a tree.

    Attributes:
        leaf: Its path.
        shape: Its shape.
        view: Its matrices, ``batch x (out, in)``.
        group: The stacks that hold them. A method that reads residual sides, such as
            `aro`, has them in the names of its stacks (``5x3-in``).
        optimizer: The optimizer that it gets.
        why: The reason.
        owners: Which owners have its matrices, as in ``0-3 of 8``; empty without.
    """

    leaf: str
    shape: tuple[int, ...]
    view: str
    group: str
    optimizer: str
    why: str
    owners: str = ""


def _check_arguments(params: Any, **names: Any) -> None:
    """Raises if an optimizer is given instead of its parameters or its name."""
    if isinstance(params, optax.GradientTransformation) or is_function(params):
        raise ValueError(
            "`params` must be the parameters, or their shapes, got an optimizer or a "
            "function; write describe(params, dimension_numbers), with the rule that "
            "the optimizer has."
        )
    for argument, name in names.items():
        if not isinstance(name, str):
            given = getattr(name, "__name__", type(name).__name__)
            raise ValueError(
                f"`{argument}` must be the name to print, got {given}; pass a string, "
                f"such as {argument}={given!r}."
            )


@dataclasses.dataclass(frozen=True)
class Description(Printed):
    """Rows of `describe`, and how many parameters are what; prints as a table."""

    rows: tuple[Row, ...]
    shares: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        header = [f.name for f in dataclasses.fields(Row)]
        table = [header, *(list(map(str, dataclasses.astuple(r))) for r in self.rows)]
        if not any(row.owners for row in self.rows):
            table = [line[:-1] for line in table]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in table]
        total = sum(self.shares.values()) or 1
        shown = (f"{100 * n / total:.0f}% {what}" for what, n in self.shares.items())
        return "\n".join([*lines, *([", ".join(shown)] if self.shares else [])])


def describe(
    params: Any,
    dimension_numbers: Any = None,
    *,
    placement: Placement | None = None,
    matrix: str = "matrix",
    other: str = "other",
    max_batch: int | None = None,
) -> Description:
    """Lists for every leaf whether and how it is viewed as matrices, and why.

    ``all zeros`` marks leaves with a matrix of zeros: `poet`, `oft` and `muonh` never
    move it.

    Args:
        params: Parameters, or their shapes.
        dimension_numbers: As in `on_matrices`.
        placement: As in `on_matrices`; with `owners` a last column tells which of them
            have the matrices of each leaf, and their state.
        matrix: Name to print for the optimizer of the matrices.
        other: Name to print for the optimizer of the other leaves.
        max_batch: As in `on_matrices`.

    Returns:
        The rows, and the number of parameters that each optimizer has; `print` shows a
        table that ends with their shares.

    Raises:
        ValueError: If `params` is an optimizer, or `matrix` or `other` is not a name.

    Examples:
        >>> import jax.numpy as jnp
        >>> params = {"up": {"kernel": jnp.ones((3, 5)), "bias": jnp.ones(5)}}
        >>> print(describe(params, matrix="muoneq", other="adamw"))
        leaf       shape   view       group         optimizer  why
        up/bias    (5,)    -          -             adamw      a vector
        up/kernel  (3, 5)  1x (5, 3)  5x3@969525da  muoneq     kernel (in, out)
        75% muoneq, 0% embeddings and heads, 25% adamw
    """
    _check_arguments(params, matrix=matrix, other=other)
    decisions, leaves = decide(params, dimension_numbers), named_leaves(params)
    make = group_matrices if placement is None else placement.layout
    layout = make(leaves, without_sides(views_of(decisions)), max_batch, {})
    groups: dict[str, list[str]] = {}
    for name, group in layout.groups.items():
        for member in group.members:
            groups.setdefault(member.path, []).append(name)

    zeros = zero_leaves(leaves, layout.views)
    doubted = doubts(params, decisions)

    def row(path: str, leaf: Any) -> Row:
        shape = tuple(leaf.shape)
        view = decisions[path].view
        why = decisions[path].reason
        why += f", but {doubted[path]}" if path in doubted else ""
        if view is None:
            return Row(path, shape, "-", "-", other, why)
        names = ", ".join(dict.fromkeys(groups[path]))
        why += "; all zeros" if path in zeros else ""
        return Row(path, shape, str(view), names, matrix, why, layout.owners_of(path))

    found = shares(leaves, decisions)
    names = (matrix, "embeddings and heads", other)
    rows = tuple(row(path, leaf) for path, leaf in leaves.items())
    return Description(rows, dict(zip(names, found.values(), strict=True)))
