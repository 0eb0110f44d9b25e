"""Kernels, bytes, products, host synchronizations and library calls of one step.

Everything is counted in the text of the compiled program, with the bodies of loops as
often as they run. A loop whose number of rounds the text does not tell runs `TRIPS`
times. Of a conditional the branch counts that has the fewest bytes, or the most.
"""

import collections
import math
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType

from examples.study.benchmarks._chips import Chip
from examples.study.benchmarks._fusions import fusion_bytes
from examples.study.benchmarks._program import Instruction, Program, parse
from optax_matrix.linalg.pallas import TILE

TRIPS = 2
# Operations that run nothing.
_FREE = (
    *("parameter", "constant", "iota", "tuple", "get-tuple-element", "bitcast"),
    *("after-all", "partition-id", "replica-id", "opt-barrier", "optimization-barrier"),
)
COLLECTIVES = (
    *("all-gather", "all-reduce", "all-to-all", "reduce-scatter"),
    *("collective-permute", "ragged-all-to-all", "collective-broadcast"),
)
_NO_CALLS = ("AllocateBuffer", "ConcatBitcast", "Sharding")
# Library calls that go through a batch from the host, one matrix at a time.
_ONE_BY_ONE = re.compile(r"gesvd|orgqr|ormqr|sytrd|geqrf|getri")
_BATCHED_SIDE = 32  # jaxlib has batches of SVDs up to this side.
_TRIP_COUNT = re.compile(r'known_trip_count"?:\s*\{"?n"?:\s*"?(\d+)')
_OWN_KERNEL = 'custom_call_target="mosaic_gpu'
# Of our own kernels for TPUs, which state their operations.
_TPU_KERNEL = re.compile(r'"tpu_custom_call".*"cost_estimate":\{"flops":"(\d+)"')
_TARGET = re.compile(r'custom_call_target="([^"]*)"')

Counts = collections.Counter


def counted(
    text: str,
    chip: Chip,
    pick: Callable = min,
    schedule: Mapping[str, int] = MappingProxyType({}),
) -> Counts:
    """Counts one step of a compiled program on one device.

    Args:
        text: ``compiled.as_text()``.
        chip: Its rates give the time of each kernel: that of its products or that of
            its bytes, whichever is longer. Decompositions count by their bytes alone.
        pick: `min` for the cheapest branch of each conditional, `max` for the dearest.
        schedule: Cycles of kernels by their names; those count where they take longer.

    Returns:
        ``kernels``; ``bytes``, which kernels read and write; ``seconds``; ``syncs``,
        the predicates that go to the host on a GPU: one for a conditional, and one for
        each round of a loop without a known length; ``call NAME``, library calls;
        ``single NAME``, matrices that a library handles one at a time;
        ``flops PRECISION``; ``collectives`` and ``collective bytes``.
    """
    return _Counter(parse(text), chip, pick, schedule).of(None)


class _Counter:
    def __init__(
        self,
        program: Program,
        chip: Chip,
        pick: Callable,
        schedule: Mapping[str, int],
    ) -> None:
        self.program, self.chip, self.pick = program, chip, pick
        self.schedule = schedule
        self.memory: dict[str, Counts] = {}

    def of(self, name: str | None) -> Counts:
        """The counts of a computation, or of the whole program."""
        name = name or self.program.entry
        if name not in self.memory:
            total: Counts = Counts()
            for x in self.program.computations.get(name, {}).values():
                total.update(self.one(x, self.program.computations[name]))
            self.memory[name] = total
        return self.memory[name]

    def one(self, x: Instruction, scope: dict[str, Instruction]) -> Counts:
        if x.operation == "while":
            return self.loop(x)
        if x.operation == "conditional":
            names = x.called("branch_computations")
            names = names or [
                x.called(f"{kind}_computation")[0] for kind in ("true", "false")
            ]
            chosen = self.pick(map(self.of, names), key=lambda c: c["bytes"])
            return chosen + Counts(syncs=1)
        if x.operation in ("call", "async-start"):
            names = x.called("to_apply") + x.called("calls")
            return sum(map(self.of, names), Counts())
        if x.operation == "copy-start":  # Into a TPU's fast memory, or out of it.
            seconds = x.bytes / self.chip.bandwidth
            return Counts(bytes=x.bytes, seconds=seconds)  # pyright: ignore[reportArgumentType]
        started = x.operation.endswith(("-start", "-update"))
        if x.operation in _FREE or x.operation == "async-done" or started:
            return Counts()
        kind = x.operation.removesuffix("-done")
        if kind in COLLECTIVES:
            return Counts({"collectives": 1, "collective bytes": x.bytes})
        if x.operation.endswith("-done"):
            return Counts()
        return self.kernel(x, scope)

    def loop(self, x: Instruction) -> Counts:
        known = _TRIP_COUNT.search(x.attributes)
        trips = int(known[1]) if known else self.rounds(x.called("condition")[0])
        once = self.of(x.called("body")[0]) + self.of(x.called("condition")[0])
        total = Counts({name: trips * n for name, n in once.items()})
        if not known:
            total.update(syncs=trips + 1)
        return total

    def rounds(self, condition: str) -> int:
        """The constant that a loop counts up to, or `TRIPS`."""
        scope = self.program.computations[condition]
        *_, root = scope.values()
        compared = (scope[o] for o in root.operands if o in scope)
        found = [x.inside for x in compared if x.operation == "constant"]
        counts = root.operation == "compare" and "direction=LT" in root.attributes
        return int(found[0]) if counts and found else TRIPS

    def kernel(self, x: Instruction, scope: dict[str, Instruction]) -> Counts:
        found: Counts = Counts(kernels=1)
        moved = x.bytes + sum(scope[o].bytes for o in x.operands if o in scope)
        if x.operation == "fusion":
            moved = fusion_bytes(self.program.computations[x.called("calls")[0]])
        elif x.operation in ("dynamic-slice", "slice"):
            source = scope[x.operands[0]]
            moved = x.bytes + min(x.all_bytes, source.bytes)
        elif x.operation == "dynamic-update-slice":
            moved = 2 * scope[x.operands[1]].bytes
        if x.operation == "custom-call":
            target = _TARGET.search(x.attributes)[1]  # pyright: ignore[reportOptionalSubscript]
            if target in _NO_CALLS:
                return Counts()
            if "gemm" not in target and "matmul" not in target:
                found.update(_library_call(target, scope, x))
        flops = self.products(x, scope)
        times = [n / self.chip.rates[name] for name, n in flops.items()]
        found["bytes"] = moved
        scheduled = self.schedule.get(x.name, 0) / (self.chip.clock or 1)
        found["seconds"] = max(sum(times), moved / self.chip.bandwidth, scheduled)  # pyright: ignore[reportArgumentType]
        found.update({f"flops {name}": n for name, n in flops.items()})
        return found

    def products(self, x: Instruction, scope: dict[str, Instruction]) -> Counts:
        """FLOPs of the matrix products in a kernel, by precision."""
        if x.operation == "fusion":
            total: Counts = Counts()
            body = self.program.computations.get(x.called("calls")[0], {})
            for inner in body.values():
                total.update(self.products(inner, body))
            return total
        if x.operation == "custom-call" and _OWN_KERNEL in x.attributes:
            # Products X X' in 16 bits: tiles on and below the diagonal only.
            (count, m, _), n = x.shape, scope[x.operands[0]].shape[-1]
            return Counts(bf16=count * m * (m + TILE) * n)
        if x.operation == "custom-call" and (ours := _TPU_KERNEL.search(x.attributes)):
            return Counts(bf16=int(ours[1]))
        is_gemm = re.search(r'target="__cublas\$[^"]*(gemm|matmul)', x.attributes)
        if x.operation not in ("dot", "convolution") and not is_gemm:
            return Counts()
        operands = [scope[o] for o in x.operands[:2] if o in scope]
        if len(operands) < 2:
            return Counts()
        flops = 2 * x.size * _contracted(x, operands)
        return Counts({self.precision(x, operands): flops})

    def precision(self, x: Instruction, operands: list[Instruction]) -> str:
        """Name of the precision of a product: ``f32``, ``tf32``, ``bf16x3``, ..."""
        dtypes = {operand.arrays[0][0] for operand in operands}
        if not dtypes & {"f32", "f64"}:
            return "bf16"
        text = x.attributes.lower()
        algorithm = re.search(r"dot_(tf32|bf16)_\1_f32(?:_(x\d))?\b", text)
        if algorithm:
            return algorithm[1] + (algorithm[2] or "")
        ordinary, high, highest = self.chip.default
        asked = re.search(r"operand_precision\W+(\w+)", text)
        return {"high": high, "highest": highest}.get(
            asked[1] if asked else "", ordinary
        )


def _contracted(x: Instruction, operands: list[Instruction]) -> int:
    """Length of the axes that a product sums over."""
    left, right = operands
    if x.operation == "convolution":
        # Of the products in a batch, which is a spatial axis, each sums over features.
        labels = re.search(r"dim_labels=\w+_(\w+)->", x.attributes)
        return right.shape[labels[1].index("i")] if labels else 1
    axes = re.search(r"lhs_contracting_dim(?:ension)?s\W+([\d,\" ]*)", x.attributes)
    numbers = re.findall(r"\d+", axes[1]) if axes else []
    return math.prod(left.shape[int(n)] for n in numbers)


def _library_call(target: str, scope: dict[str, Instruction], x: Instruction) -> Counts:
    name = target.removeprefix("__cublas$").removesuffix("_ffi")
    name = name.removeprefix("cusolver_").removeprefix("cu_")
    found = Counts({f"call {name}": 1})
    if _ONE_BY_ONE.search(name) and x.operands[0] in scope:
        *batch, rows, cols = scope[x.operands[0]].shape
        small = "gesvd" in name and max(rows, cols) <= _BATCHED_SIDE
        number = math.prod(batch)
        if name == "geqrf" and rows / max(number, 1) <= 128:
            small = True  # jaxlib takes its batched form then.
        if not small:
            found[f"single {name}"] = number
    return found
