"""Bytes that a fusion reads and writes.

What it only takes a slice of counts as the slice, and what it updates in place as the
update. A slice of sums, products or choices of entries, or of several arrays in a row,
takes slices of these arrays: a kernel computes what it returns, and nothing else.
"""

import collections
import math
import re
from collections.abc import Mapping
from typing import Any

from examples.study.benchmarks._program import Instruction

_SLICES = ("slice", "dynamic-slice", "gather")
_OF_ENTRIES = (
    *("add", "subtract", "multiply", "divide", "maximum", "minimum", "power"),
    *("select", "compare", "clamp", "convert", "copy", "negate", "abs", "sign"),
    *("sqrt", "rsqrt", "exponential", "log", "tanh", "is-finite"),
    *("and", "or", "not", "xor"),
)
_RANGE = re.compile(r"\[(\d+):(\d+)(?::\d+)?\]")
_AXIS = re.compile(r"dimensions=\{(\d+)\}")

Box = tuple[tuple[int, int], ...]  # Start and stop of each axis.


def fusion_bytes(body: Mapping[str, Instruction]) -> int:
    """Bytes that a fusion with these instructions reads and writes."""
    reads = _Reads(body)
    parameters = (x for x in body.values() if x.operation == "parameter")
    *_, root = body.values()
    return sum(map(reads.bytes_of, parameters)) + _written(root, body)


class _Reads:
    """What a fusion reads of each array in it."""

    def __init__(self, body: Mapping[str, Instruction]) -> None:
        self.body = body
        self.users = collections.defaultdict(list)
        for x in body.values():
            for place, operand in enumerate(x.operands):
                self.users[operand].append((x, place))
        self.memory: dict[str, set[Box] | None] = {}

    def bytes_of(self, x: Instruction) -> int:
        total, boxes = 0, set()
        for user, place in self.users[x.name]:
            if user.operation == "bitcast":
                total += self.bytes_of(user)
            elif place == 0 and user.operation in _SLICES:
                total += user.all_bytes
            elif place != 0 or user.operation != "dynamic-update-slice":
                if (some := self.through(x, user, place)) is None:
                    return x.bytes
                boxes |= some
        entries = sum(math.prod(b - a for a, b in box) for box in boxes)
        total += entries * x.bytes // max(math.prod(x.shape), 1)
        return min(total, x.bytes)

    def boxes(self, x: Instruction) -> set[Box] | None:
        """The slices that are taken of an array; None for all of it."""
        if x.name not in self.memory:
            found: set[Box] | None = set() if self.users[x.name] else None
            for user, place in self.users[x.name]:
                some = self.through(x, user, place)
                found = None if found is None or some is None else found | some
            self.memory[x.name] = found
        return self.memory[x.name]

    def through(self, x: Instruction, user: Instruction, place: int) -> Any:
        """The slices of an array that one of its users needs; None for all of it."""
        if user.operation == "slice":
            return {_box(user)}
        if user.operation in _OF_ENTRIES and user.shape == x.shape:
            return self.boxes(user)
        if user.operation != "concatenate" or (boxes := self.boxes(user)) is None:
            return None
        axis = int(_AXIS.search(user.attributes)[1])  # pyright: ignore[reportOptionalSubscript]
        first = sum(self.body[o].shape[axis] for o in user.operands[:place])
        cut = (_cut(box, axis, first, x.shape[axis]) for box in boxes)
        return {box for box in cut if box is not None}


def _box(x: Instruction) -> Box:
    ranges = x.attributes.partition("slice={")[2].partition("}")[0]
    return tuple((int(a), int(b)) for a, b in _RANGE.findall(ranges))


def _cut(box: Box, axis: int, first: int, size: int) -> Box | None:
    """The part of a box in one of several arrays in a row; None if there is none."""
    start, stop = (min(max(i - first, 0), size) for i in box[axis])
    return (*box[:axis], (start, stop), *box[axis + 1 :]) if start < stop else None


def _written(x: Instruction, body: Mapping[str, Instruction]) -> int:
    if x.operation == "dynamic-update-slice":
        return body[x.operands[1]].bytes
    if x.operation == "bitcast" and x.operands[0] in body:
        return _written(body[x.operands[0]], body)
    if x.operation == "tuple":
        return sum(_written(body[o], body) for o in x.operands)
    return x.bytes
