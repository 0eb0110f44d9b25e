"""Collectives in flight beside other work, in the text of a scheduled program."""

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from examples.study.benchmarks._cycles import estimates
from examples.study.benchmarks._program import Instruction, Program, parse

_KIND = re.compile(
    r"((?:ragged-)?all-to-all|all-gather|all-reduce|reduce-scatter|collective-permute"
    r"|collective-broadcast)(-start|-done)?"
)
_CHAIN = re.compile(r'chain_id="(\d+)"')
_CALLS = "calls", "body", "to_apply", "branch_computations"
_CALLS += "true_computation", "false_computation"


class Flight(NamedTuple):
    """A collective, and what the device does between its start and its end.

    Attributes:
        bytes: Bytes of its result.
        cycles: The compiler's estimate of the other work; loops as often as they run.
        products: Whether matrices are multiplied.
    """

    bytes: int
    cycles: int = 0
    products: bool = False


def flights(text: str, kind: str = "", during: str = "") -> list[Flight]:
    """The collectives of a program, in the order in which they end.

    One without a start of its own blocks all other work. The TPU compiler repeats a
    collective that it overlaps with other work in each of the fusions that it overlaps;
    those share a ``chain_id``, and count as one beside products. All other ones in
    fusions count as those that block.

    Args:
        text: ``compiled.as_text()``.
        kind: Kind of the collectives, such as ``all-to-all``; empty for all.
        during: Text of the products that count, such as ``transpose(jvp`` for those of
            the backward pass; empty for all. It does not select among fusions that
            contain collectives.
    """
    program = parse(text)
    known = _multiplies(program, during), estimates(program)
    chains: set[tuple[str, str]] = set()
    found: list[Flight] = []
    for computation in program.computations.values():
        for name, flight, chain in _of(computation, *known):
            if kind in ("", name) and (name, chain) not in chains:
                found.append(flight)
            if chain:
                chains.add((name, chain))
    return found


def overlapped(text: str, kind: str = "", during: str = "") -> tuple[int, int]:
    """The number of collectives beside products, and that of all; see `flights`."""
    found = flights(text, kind, during)
    return sum(x.products for x in found), len(found)


def _multiplies(program: Program, during: str) -> Callable[[Instruction], bool]:
    """Whether an instruction multiplies matrices, itself or in what it calls."""

    @functools.cache
    def inside(name: str) -> bool:
        return any(map(of, program.computations.get(name, {}).values()))

    def of(instruction: Instruction) -> bool:
        if instruction.operation in ("convolution", "dot"):
            return during in instruction.attributes
        return any(inside(x) for word in _CALLS for x in instruction.called(word))

    return of


def _of(
    computation: Mapping[str, Instruction],
    multiplies: Callable[[Instruction], bool],
    cycles: Callable[[Instruction], int],
) -> Iterator[tuple[str, Flight, str]]:
    """Kind, flight and chain of the collectives of a computation."""
    started: dict[str, Flight] = {}
    for name, x in computation.items():
        match = _KIND.fullmatch(x.operation)
        if match is None:
            work, has_products = cycles(x), multiplies(x)
            for one, (_, before, had_products) in started.items():
                started[one] = Flight(0, before + work, had_products or has_products)
        elif match[2] == "-start":
            started[name] = Flight(0)
        elif match[2] == "-done":
            flight = started.pop(x.operands[0], Flight(0))
            yield match[1], flight._replace(bytes=x.all_bytes), ""
        else:
            chain = _CHAIN.search(x.attributes)
            flight = Flight(x.all_bytes, products=chain is not None)
            yield match[1], flight, chain[1] if chain else ""
