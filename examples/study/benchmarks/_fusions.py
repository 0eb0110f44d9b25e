"""Bytes that a fusion reads and writes.

What it only takes a slice of counts as the slice, and what it updates in place as the
update.
"""

import collections
from collections.abc import Mapping

from examples.study.benchmarks._program import Instruction

_SLICES = ("slice", "dynamic-slice", "gather")


def fusion_bytes(body: Mapping[str, Instruction]) -> int:
    """Bytes that a fusion with these instructions reads and writes."""
    users: dict[str, list[tuple[Instruction, int]]] = collections.defaultdict(list)
    for x in body.values():
        for place, operand in enumerate(x.operands):
            users[operand].append((x, place))

    def read(x: Instruction) -> int:
        total = 0
        for user, place in users[x.name]:
            if user.operation == "bitcast":
                total += read(user)
            elif place == 0 and user.operation in _SLICES:
                total += user.all_bytes
            elif place != 0 or user.operation != "dynamic-update-slice":
                return x.bytes
        return min(total, x.bytes)

    parameters = (x for x in body.values() if x.operation == "parameter")
    *_, root = body.values()
    return sum(map(read, parameters)) + _written(root, body)


def _written(x: Instruction, body: Mapping[str, Instruction]) -> int:
    if x.operation == "dynamic-update-slice":
        return body[x.operands[1]].bytes
    if x.operation == "bitcast" and x.operands[0] in body:
        return _written(body[x.operands[0]], body)
    if x.operation == "tuple":
        return sum(_written(body[o], body) for o in x.operands)
    return x.bytes
