"""The text of a compiled program as instructions, by computation."""

import dataclasses
import math
import re

from examples.study.benchmarks._hlo import result_bytes

_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.\-]+)")
_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = (.*)$")
_OPERATION = re.compile(r"([\w\-]+)\((.*)$")
_NAME = re.compile(r"%([\w.\-]+)")
_FAST = re.compile(r"\b[a-z0-9]+\[[\d,]*\]\{[^}]*T\([^}]*S\(1\)\}")
_ARRAY = re.compile(r"\b([a-z]+\d*[a-z0-9]*)\[([\d,]*)\]")


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One instruction: ``name = result operation(inside), attributes``."""

    name: str
    result: str
    operation: str
    inside: str
    attributes: str

    @property
    def operands(self) -> list[str]:
        """Names of the operands."""
        return _NAME.findall(self.inside)

    @property
    def bytes(self) -> int:
        """Bytes of the result in main memory, of a TPU outside of its fast memory."""
        return result_bytes(_FAST.sub("", self.result))

    @property
    def all_bytes(self) -> int:
        """Bytes of the result in any memory."""
        return result_bytes(self.result)

    @property
    def arrays(self) -> list[tuple[str, tuple[int, ...]]]:
        """Dtypes and shapes of the result."""
        numbers = lambda text: tuple(int(n) for n in text.split(",") if n)
        return [(dtype, numbers(s)) for dtype, s in _ARRAY.findall(self.result)]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the result, or of its first array."""
        return self.arrays[0][1]

    @property
    def size(self) -> int:
        """Number of elements of the result, or of its first array."""
        return math.prod(self.shape)

    def called(self, attribute: str) -> list[str]:
        """Names of the computations in an attribute; none without it."""
        found = re.search(rf"\b{attribute}=(\{{[^}}]*\}}|%?[\w.\-]+)", self.attributes)
        if found is None:
            return []
        return re.findall(r"[\w.\-]+", found[1])


@dataclasses.dataclass(frozen=True)
class Program:
    """Computations by name, each a dict of instructions in order; and the entry's."""

    computations: dict[str, dict[str, Instruction]]
    entry: str


def parse(text: str) -> Program:
    """Reads ``compiled.as_text()``."""
    computations: dict[str, dict[str, Instruction]] = {}
    entry = current = ""
    for line in text.splitlines():
        if line.startswith("}"):
            current = ""
        elif line and not line[0].isspace() and line.rstrip().endswith("{"):
            found = _COMPUTATION.match(line)
            if "->" in line and found:
                current = found[2]
                computations[current] = {}
                entry = current if found[1] else entry
        elif current and (found := _instruction(line)):
            computations[current][found.name] = found
    return Program(computations, entry)


def _instruction(line: str) -> Instruction | None:
    found = _INSTRUCTION.match(line)
    if found is None:
        return None
    name, rest = found[1], found[2]
    if rest.startswith("("):
        end = _closing(rest)
        result, rest = rest[: end + 1], rest[end + 1 :].strip()
    else:
        result, _, rest = rest.partition(" ")
    operation = _OPERATION.match(rest)
    if operation is None:
        return None
    inside = "(" + operation[2]
    end = _closing(inside)
    return Instruction(name, result, operation[1], inside[1:end], inside[end + 1 :])


def _closing(text: str) -> int:
    """Where the parenthesis that begins the text is closed."""
    depth = 0
    for i, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return i
    return len(text)
