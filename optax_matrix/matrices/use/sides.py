"""The axes and sections of a matrix, from its uses."""

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from optax_matrix.matrices.use.uses import Use
from optax_matrix.matrices.use.views import FREE, Part
from optax_matrix.matrices.view import MatrixDimensionNumbers, Side


class Sides(NamedTuple):
    """What one use says of the axes of its parameter.

    Attributes:
        of_axis: For each axis ``"in"``, ``"out"``, ``"batch"``, or ``"one"`` for those
            of length one.
        sections: Numbers of matrices along the sides that hold several.
    """

    of_axis: dict[int, str]
    sections: dict[str, int]

    def axes(self, side: str) -> tuple[int, ...]:
        """The axes of one side, in order."""
        return tuple(axis for axis, found in self.of_axis.items() if found == side)


def sides_of(use: Use, shape: Sequence[int]) -> Sides | str:
    """The sides of a product's parameter, or why it has none."""
    roles: dict[int, list[tuple[Part, str]]] = defaultdict(list)
    for side, parts in ("in", use.inputs), ("out", use.outputs), ("batch", use.batch):
        for part in parts:
            roles[part.axis].append((part, side))
    sides = Sides({}, {})
    for axis, size in enumerate(shape):
        found = {side for _, side in roles[axis]}
        if size == 1:
            sides.of_axis[axis] = "one"
        elif not found:
            return f"axis {axis} is summed before the product"
        elif len(found) == 1:
            sides.of_axis[axis] = found.pop()
        elif found == {"in", "out"} or len(found) == 3:
            return f"axis {axis} is input and output"
        else:
            side = "in" if "in" in found else "out"
            count = _matrices_along(roles[axis])
            if count is None:
                return f"axis {axis} interleaves matrices"
            sides.of_axis[axis] = side
            sides.sections[side] = count
    return sides


def _matrices_along(parts: list[tuple[Part, str]]) -> int | None:
    """The number of matrices along one axis, if each is a run of its entries."""
    ordered = sorted(parts, key=lambda x: -x[0].stride)
    batch = [part.size for part, side in ordered if side == "batch"]
    is_outer = all(side == "batch" for _, side in ordered[: len(batch)])
    return math.prod(batch) if is_outer else None


def numbers_of(
    sides: Sides, uses: Sequence[Use], shape: Sequence[int], streams: set[int]
) -> MatrixDimensionNumbers:
    """The dimension numbers of a matrix that these products use alike.

    ``streams`` has the signals that are on a residual stream.
    """
    kept = {axis for use in uses for axis in use.kept - use.summed}
    turned = {
        axis: "batch" if side == "out" and axis in kept else side
        for axis, side in sides.of_axis.items()
    }
    if "out" in turned.values():  # Members of an ensemble that share their input.
        sides = Sides(turned, sides.sections)
    numbers: dict[str, Any] = {}  # Sections, where there are several.
    groups = max(use.groups for use in uses)
    if "out" in sides.sections or groups > 1:
        numbers["output_sections"] = sides.sections.get("out", 1) * groups
    if "in" in sides.sections:
        numbers["reduction_sections"] = sides.sections["in"]
    outputs = sides.axes("out")
    cut = _sections(uses, shape, outputs) if not numbers else 1
    if cut == shape[outputs[0]] and len(outputs) > 1:
        sides = Sides(sides.of_axis | {outputs[0]: "batch"}, sides.sections)
    elif cut != 1:
        numbers["output_sections"] = cut
    layers = {part.axis for use in uses for part in use.layers}
    layers = tuple(axis for axis in sides.axes("batch") if axis in layers)
    one = lambda axes: axes[0] if len(axes) == 1 else axes
    return MatrixDimensionNumbers(
        one(sides.axes("in")),
        one(sides.axes("out")),
        layer_axis=one(layers) if layers else None,
        residual=_residual(uses, streams),
        **numbers,
    )


def _residual(uses: Sequence[Use], streams: set[int]) -> Side | None:
    reads = any(use.reads in streams for use in uses)
    writes = any(use.writes in streams for use in uses)
    return None if reads == writes else "in" if reads else "out"


def _sections(uses: Sequence[Use], shape: Sequence[int], outputs: Sequence[int]):
    """Sizes of the parts that the output side is cut into; 1 for none."""
    first = outputs[0]
    if any(first in use.rejoined for use in uses):
        return 1
    cuts = {(at, n) for use in uses for axis, at, n in use.cuts if axis == first}
    for use in uses:
        own = [part for part in use.outputs if part.axis == first]
        if len(own) == 1 and own[0].start != FREE:
            cuts |= {(p.start, p.size * p.stride) for p in own}
    cuts.discard((0, shape[first]))
    sizes = _partition(cuts, shape[first])
    rest = math.prod(shape[axis] for axis in outputs[1:])
    if not sizes:
        return 1
    return len(sizes) if len(set(sizes)) == 1 else tuple(n * rest for n in sizes)


def _partition(cuts: Iterable[tuple[int, int]], size: int) -> list[int]:
    """Sizes of the finest parts, if the cuts are nested or apart and cover all."""
    spans = [(at, at + n) for at, n in cuts]
    for a, b in spans:
        if a < 0 or any(a < c < b < d for c, d in spans):
            return []
    points = sorted({point for span in spans for point in span})
    parts = list(itertools.pairwise(points))
    covered = all(any(a <= p and q <= b for a, b in spans) for p, q in parts)
    if len(parts) < 2 or points[0] or points[-1] != size or not covered:
        return []
    return [q - p for p, q in parts]
