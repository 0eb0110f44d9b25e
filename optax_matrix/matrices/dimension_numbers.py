"""Which axes of a parameter are its matrix."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

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


def is_dimension_numbers(x: Any) -> bool:
    """Whether `x` has reduction and output axes, be it of this library or another."""
    return hasattr(x, "reduction_axis") and hasattr(x, "output_axis")
