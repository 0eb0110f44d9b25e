"""Which axes of a leaf are its matrix, and the leaf as ``(batch, out, in)``."""

import dataclasses
import functools
import itertools
import math
import operator
from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array

Side = Literal["out", "in"]
Axes = int | Sequence[int]
Sections = int | Sequence[int]


@dataclasses.dataclass(frozen=True)
class MatrixDimensionNumbers:
    """Names the axes of one parameter that form its matrix; all others are batch axes.

    The first two fields are those of `optax.contrib.MuonDimensionNumbers`, which is
    accepted wherever this class is.

    Attributes:
        reduction_axis: Axis or axes that the layer sums over (fan-in).
        output_axis: Axis or axes that the layer produces (fan-out).
        output_sections: Splits the output side into several matrices: a number of
            equal ones (heads), or their sizes (a fused query-key-value kernel).
        reduction_sections: The same for the reduction side (the heads of an
            attention output kernel).
        residual: The side on the residual stream: ``"out"`` for a kernel that writes
            it, ``"in"`` for one that reads it, None if unknown.
        layer_axis: Batch axis (or axes, in this order) of scanned layers, ``()`` if
            there is none, None if unknown. Only rotations that are shared in a chain
            use it.

    Examples:
        >>> fused_qkv = MatrixDimensionNumbers(0, 1, output_sections=(64, 16, 16))
        >>> per_head = MatrixDimensionNumbers(reduction_axis=0, output_axis=2)
        >>> merged_heads = MatrixDimensionNumbers(0, (1, 2))
    """

    reduction_axis: Axes = 0
    output_axis: Axes = 1
    output_sections: Sections = 1
    reduction_sections: Sections = 1
    residual: Side | None = None
    layer_axis: Axes | None = None

    def __post_init__(self):
        if self.residual not in ("out", "in", None):
            raise ValueError(
                "`residual` must be 'out' (the kernel writes the residual stream), "
                f"'in' (it reads it) or None, got {self.residual!r}."
            )
        for field in dataclasses.fields(self):
            value, what = getattr(self, field.name), "the number of an axis"
            if field.name == "residual" or (field.name, value) == ("layer_axis", None):
                continue
            if field.name.endswith("sections"):
                what = "a number of sections"  # Or their sizes.
            try:
                _ints(value)
            except TypeError:
                raise ValueError(
                    f"`{field.name}` must be {what}, or a tuple of them, got {value!r}."
                ) from None
            if isinstance(value, list):  # Lists cannot be hashed.
                object.__setattr__(self, field.name, tuple(value))


def is_dimension_numbers(x: Any) -> bool:
    """Whether `x` has reduction and output axes, be it of this library or another."""
    return hasattr(x, "reduction_axis") and hasattr(x, "output_axis")


@dataclasses.dataclass(frozen=True)
class Piece:
    """One block of a view: ``count`` matrices of shape ``(rows, cols)``."""

    count: int
    rows: int
    cols: int


@dataclasses.dataclass(frozen=True)
class MatrixView:
    """How one leaf is viewed as matrices ``(batch, out, in)``; static and hashable.

    Attributes:
        shape: The leaf's shape.
        batch_axes: Leaf axes that are not part of a matrix.
        output_axes: Leaf axes merged into the rows.
        reduction_axes: Leaf axes merged into the columns.
        output_sections: Row sizes of the pieces, or a number of equal ones.
        reduction_sections: Column sizes of the pieces, or a number of equal ones.
        residual: Side of the residual stream, if known.
        layer_axes: Batch axes of layers, if known.
    """

    shape: tuple[int, ...]
    batch_axes: tuple[int, ...]
    output_axes: tuple[int, ...]
    reduction_axes: tuple[int, ...]
    output_sections: int | tuple[int, ...] = 1
    reduction_sections: int | tuple[int, ...] = 1
    residual: Side | None = None
    layer_axes: tuple[int, ...] | None = dataclasses.field(default=None, compare=False)

    @property
    def batch(self) -> int:
        """Number of matrices before any split into sections."""
        return math.prod(self.shape[a] for a in self.batch_axes)

    @property
    def rows(self) -> int:
        """Rows before any split: the product of the output axes."""
        return math.prod(self.shape[a] for a in self.output_axes)

    @property
    def cols(self) -> int:
        """Columns before any split: the product of the reduction axes."""
        return math.prod(self.shape[a] for a in self.reduction_axes)

    @property
    def order(self) -> tuple[int, ...]:
        """The permutation of the leaf's axes that gives the view."""
        return self.batch_axes + self.output_axes + self.reduction_axes

    @functools.cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """The blocks of equal matrices that the leaf consists of."""
        return tuple(
            Piece(self.batch * p * q, rows, cols)
            for p, rows in _blocks(self.output_sections, self.rows)
            for q, cols in _blocks(self.reduction_sections, self.cols)
        )

    def __str__(self) -> str:
        return ", ".join(f"{p.count}x ({p.rows}, {p.cols})" for p in self.pieces)

    def to_matrices(self, x: Array) -> list[Array]:
        """Stacked leaves ``(k, *shape)`` as ``(k * count, rows, cols)`` per piece."""
        x = jnp.transpose(x, (0, *(1 + a for a in self.order)))
        x = x.reshape(-1, self.rows, self.cols)
        return [
            _fold(block, p, q)
            for p, row_band in _bands(x, self.output_sections, axis=1)
            for q, block in _bands(row_band, self.reduction_sections, axis=2)
        ]

    def from_matrices(self, pieces: Sequence[Array]) -> Array:
        """The stacked leaves that these pieces come from; inverts `to_matrices`."""
        rest, blocks = iter(pieces), _blocks(self.reduction_sections, self.cols)
        bands = [
            _join([_unfold(next(rest), p, q) for q, _ in blocks], axis=2)
            for p, _ in _blocks(self.output_sections, self.rows)
        ]
        x = _join(bands, axis=1).reshape(-1, *(self.shape[a] for a in self.order))
        inverse = (self.order.index(a) for a in range(len(self.order)))
        return jnp.transpose(x, (0, *(1 + i for i in inverse)))

    def spec_of_piece(self, spec: Sequence[Any]) -> tuple[Any, Any, Any]:
        """Mesh axes of ``(batch, out, in)`` for a leaf that is sharded by `spec`.

        Merged axes keep the mesh axes of the first of them. Mesh axes of the others
        cannot be expressed on the merged axis and are dropped, and so are those of a
        side that is split into sections.
        """
        spec = tuple(spec) + (None,) * (len(self.shape) - len(spec))
        whole = self.output_sections == 1, self.reduction_sections == 1
        first = lambda axes: next((spec[a] for a in axes if self.shape[a] > 1), None)
        return (
            first(self.batch_axes) if all(whole) else None,
            first(self.output_axes) if whole[0] else None,
            first(self.reduction_axes) if whole[1] else None,
        )


def make_view(shape: Sequence[int], numbers: Any, path: str = "") -> MatrixView:
    """The view of a leaf with these dimension numbers, checked against its shape."""
    where = f" of parameter {path!r} with shape {tuple(shape)}" if path else ""
    reduction = _axes("reduction_axis", numbers.reduction_axis, len(shape), where)
    output = _axes("output_axis", numbers.output_axis, len(shape), where)
    if twice := set(reduction) & set(output):
        raise ValueError(
            f"`reduction_axis` and `output_axis`{where} must not share axes, both name "
            f"{sorted(twice)}; give each axis to one side."
        )
    view = MatrixView(
        shape=tuple(shape),
        batch_axes=tuple(a for a in range(len(shape)) if a not in reduction + output),
        output_axes=output,
        reduction_axes=reduction,
        output_sections=_sections(getattr(numbers, "output_sections", 1)),
        reduction_sections=_sections(getattr(numbers, "reduction_sections", 1)),
        residual=getattr(numbers, "residual", None),
        layer_axes=_layer_axes(numbers, len(shape), reduction + output, where),
    )
    _check_sections("output_sections", view.output_sections, view.rows, where)
    _check_sections("reduction_sections", view.reduction_sections, view.cols, where)
    return view


def _axes(name: str, axes: Axes, ndim: int, where: str) -> tuple[int, ...]:
    axes = _ints(axes)
    if not axes or any(not -ndim <= a < ndim for a in axes):
        raise ValueError(
            f"`{name}`{where} must name axes between {-ndim} and {ndim - 1}, got "
            f"{axes}; correct it, or give None for leaves that are not matrices."
        )
    axes = tuple(a % ndim for a in axes)
    if len(set(axes)) < len(axes):
        raise ValueError(f"`{name}`{where} must not repeat an axis, got {axes}.")
    return axes


def _layer_axes(
    numbers: Any, ndim: int, matrix: tuple[int, ...], where: str
) -> tuple[int, ...] | None:
    given = getattr(numbers, "layer_axis", None)
    if given is None or not _ints(given):
        return given if given is None else ()
    axes = _axes("layer_axis", given, ndim, where)
    if both := set(axes) & set(matrix):
        raise ValueError(
            f"`layer_axis`{where} must name batch axes, but {sorted(both)} is part of "
            "the matrix; name the axis of layers, or None."
        )
    return axes


def _ints(axes: Any) -> tuple[int, ...]:
    several = axes if isinstance(axes, Sequence) else (axes,)
    return tuple(operator.index(a) for a in several)


def _sections(sections: Sections) -> int | tuple[int, ...]:
    several = _ints(sections)
    return several if isinstance(sections, Sequence) else several[0]


def _check_sections(name: str, sections, size: int, where: str) -> None:
    if isinstance(sections, int):
        if sections < 1 or size % sections:
            raise ValueError(
                f"`{name}`{where} must divide the side of size {size} that it splits, "
                f"got {sections}; give the sizes of the sections if they differ."
            )
    elif any(s < 1 for s in sections) or sum(sections) != size:
        raise ValueError(
            f"`{name}`{where} must be positive sizes that add up to {size}, got "
            f"{sections} with sum {sum(sections)}."
        )


def _blocks(sections, size: int) -> list[tuple[int, int]]:
    """For each block of a side the number of its equal sections, and their size."""
    if isinstance(sections, int):
        return [(sections, size // sections)]
    return [(1, s) for s in sections]


def _bands(x: Array, sections, axis: int):
    if isinstance(sections, int):
        return [(sections, x)]
    bounds = [sum(sections[:i]) for i in range(len(sections) + 1)]
    return [
        (1, jax.lax.slice_in_dim(x, lo, hi, axis=axis))
        for lo, hi in itertools.pairwise(bounds)
    ]


def _fold(x: Array, p: int, q: int) -> Array:
    """``(b, p*m, q*n)`` to ``(b*p*q, m, n)``."""
    b, rows, cols = x.shape
    if p == q == 1:
        return x
    x = x.reshape(b, p, rows // p, q, cols // q).transpose(0, 1, 3, 2, 4)
    return x.reshape(b * p * q, rows // p, cols // q)


def _unfold(x: Array, p: int, q: int) -> Array:
    if p == q == 1:
        return x
    _, m, n = x.shape
    x = x.reshape(-1, p, q, m, n).transpose(0, 1, 3, 2, 4)
    return x.reshape(-1, p * m, q * n)


def _join(parts: list[Array], axis: int) -> Array:
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=axis)
