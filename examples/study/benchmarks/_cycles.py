"""Cycles of a TPU program by the estimates of its compiler, which leave out waits."""

import re
from collections.abc import Callable

from examples.study.benchmarks._program import Instruction, Program, parse

_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')


def cycles(text: str) -> int:
    """Cycles of a program. Loops count as often as they run, of branches the longest.

    Args:
        text: ``compiled.as_text()``, of which each instruction has its estimate.
    """
    program = parse(text)
    return sum(map(estimates(program), program.computations[program.entry].values()))


def estimates(program: Program) -> Callable[[Instruction], int]:
    """A function that gives the cycles of an instruction, with all that it calls."""
    known: dict[str, int] = {}

    def total(name: str) -> int:
        if name not in known:
            known[name] = 0
            known[name] = sum(map(of, program.computations[name].values()))
        return known[name]

    def of(instruction: Instruction) -> int:
        if instruction.operation == "while":
            (body,) = instruction.called("body")
            return total(body) * _rounds(program, instruction)
        if instruction.operation == "conditional":
            names = ("branch_computations", "true_computation", "false_computation")
            return max(total(x) for name in names for x in instruction.called(name))
        if instruction.operation == "call":
            return sum(map(total, instruction.called("to_apply")))
        found = _CYCLES.search(instruction.attributes)
        return int(found[1]) if found else 0

    return of


def _rounds(program: Program, loop: Instruction) -> int:
    """How often a loop runs: the largest constant in its condition, or 1."""
    (name,) = loop.called("condition")
    instructions = list(program.computations[name].values())
    for x in list(instructions):
        for inner in x.called("calls") if x.operation == "fusion" else ():
            instructions += program.computations[inner].values()
    numbers = (x.inside for x in instructions if x.operation == "constant")
    return max((int(x) for x in numbers if x.isdigit()), default=1)
