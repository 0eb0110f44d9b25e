"""Collectives, reductions and loops in the text of a compiled program."""

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping

from examples.study.benchmarks._groups import axes_along

_COLLECTIVE = re.compile(
    r" = (?P<result>.*?) (?P<kind>(?:ragged-)?all-to-all|all-gather|all-reduce"
    r"|reduce-scatter|collective-permute|collective-broadcast)"
    r"(?P<phase>-start|-done)?\("
)
_FROM_SLICE = re.compile(r" = (?P<result>.*?) recv-done\(.*xla_megascale_runtime")
_ARRAY = re.compile(r"\b(pred|[a-z]+(\d+)[a-z0-9]*)\[([\d,]*)\]")
_DEFINITION = re.compile(
    r"^\s*(?:ROOT )?(%\S+) = \(?[a-z0-9]+\[([\d,]*)\]", re.MULTILINE
)
_REDUCTION = re.compile(r" reduce\((%[^\s,)]+)")
_CHAIN = re.compile(r'chain_id="(\d+)"')


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Number of collectives of one kind, and bytes that they return on each device."""

    count: int
    bytes: int


def collectives(text: str) -> dict[str, Traffic]:
    """Counts the collectives of a partitioned program, and their results' bytes.

    Each instruction counts once, wherever it stands; one in the body of a loop is not
    multiplied (see `loops`). Of an asynchronous pair the ``-done`` counts, whose result
    is the data alone. The TPU compiler repeats a collective that it overlaps with other
    work in each of the fusions that it overlaps; those share a ``chain_id``. Channel
    ids do not distinguish them: collectives of one `shard_map` share one. What comes
    from other slices of TPUs, over the network of the hosts, has the kind ``recv``.

    Args:
        text: ``compiled.as_text()``.

    Returns:
        Count and bytes on each device, by kind; kinds that do not occur are absent.
    """
    found: dict[str, Traffic] = {}
    arriving = [(m["kind"], m["result"]) for m, _ in _instructions(text, "-start")]
    arriving += [("recv", m["result"]) for m in _FROM_SLICE.finditer(text)]
    for kind, result in arriving:
        old = found.get(kind, Traffic(0, 0))
        found[kind] = Traffic(old.count + 1, old.bytes + result_bytes(result))
    return found


def along(text: str, sizes: Mapping[str, int]) -> dict[str, int]:
    """Counts the collectives that send along each mesh axis.

    They are those of `collectives`; one that sends along two axes counts for both. In a
    program for more than one slice of TPUs, devices are numbered within a slice, and
    what arrives from others is ``recv``: leave an axis of slices out of `sizes`.

    Args:
        text: ``compiled.as_text()``.
        sizes: Size of each mesh axis, in the order of the mesh.

    Returns:
        Counts by axis; axes along which nothing is sent are absent.

    Raises:
        ValueError: As `axes_along`.
    """
    found: Counter[str] = Counter()
    for _, line in _instructions(text, "-done"):
        found.update(axes_along(line, sizes))
    return {axis: found[axis] for axis in sizes if axis in found}


def _instructions(text: str, skipped: str) -> Iterator[tuple[re.Match, str]]:
    """The collectives with their lines, each once, of pairs without one phase."""
    chains = set()
    for line in text.splitlines():
        match = _COLLECTIVE.search(line)
        if match is None or match["phase"] == skipped:
            continue
        chain = _CHAIN.search(line)
        if chain is not None:
            if (match["kind"], chain[1]) in chains:
                continue
            chains.add((match["kind"], chain[1]))
        yield match, line


def has_products(text: str) -> bool:
    """Whether there are matrix products, which TPUs form as convolutions."""
    return re.search(r" (?:convolution|dot)\(", text) is not None


def reduced_elements(text: str) -> int:
    """Elements that reductions read; each reduction counts once, loops or not."""
    sizes = {name: _elements(shape) for name, shape in _DEFINITION.findall(text)}
    return sum(sizes[name] for name in _REDUCTION.findall(text))


def result_bytes(result: str) -> int:
    """Bytes of an array or a tuple, such as ``(bf16[4,8]{1,0}, f32[])``."""
    total = 0
    for dtype, bits, shape in _ARRAY.findall(result):
        width = 8 if dtype == "pred" else int(bits)
        total += math.ceil(_elements(shape) * width / 8)
    return total


def loops(text: str) -> int:
    """Number of loops, whose bodies compilers and `collectives` count only once."""
    return len(re.findall(r" while\(", text))


def _elements(shape: str) -> int:
    return math.prod(int(n) for n in shape.split(",") if n)
