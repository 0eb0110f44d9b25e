"""What one optimizer step does on one or eight devices that are not there.

See `examples.study.benchmarks.aot`, whose form with ``--platform`` this is.
"""

import argparse
import dataclasses
import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import AxisType, Mesh

import optax_matrix as om
from examples.study.benchmarks import _chips, _compile, _count, memory

COLUMNS = {
    "kernels": 12,
    "passes": 12,
    "temp MiB": 9,
    "memory": 8,
    "syncs": 7,
    "collect. MiB": 14,
    "compile s": 10,
    "ms": 12,
    "/ floor": 11,
}
ADAMW_PASSES = 7  # It reads gradients, weights and two moments, and writes the latter.
RANK = {"rank": 0.25}  # Of the recipes with a rank; their defaults suit wider models.
MIB = 2**20


@dataclasses.dataclass(frozen=True)
class Account:
    """The compiler's account of one step on each device.

    Attributes:
        cheapest: `_count.counted` with the cheapest branch of each conditional: a step
            without a renewal.
        dearest: The same with the dearest branch.
        temporary_bytes: Memory beside arguments and results.
        numbers: All memory over that of the weights, as `memory` has it: 4 for AdamW.
        seconds: Processor seconds of tracing and compiling.
        pass_bytes: Bytes of the parameters.
        floor_bytes: Bytes that the method must read and write, products aside: those of
            AdamW, and those of its own state where that is larger.
    """

    cheapest: _count.Counts
    dearest: _count.Counts
    temporary_bytes: int
    numbers: float
    seconds: float
    pass_bytes: int
    floor_bytes: int

    def floor_seconds(self, counts: _count.Counts, chip: _chips.Chip) -> float:
        """Time of the bytes that the method must move and of its products."""
        flops = _named(counts, "flops ")
        products = sum(n / chip.rates[name] for name, n in flops.items())
        return self.floor_bytes / chip.bandwidth + products


def account(
    tx: optax.GradientTransformation,
    params: Any,
    chip: _chips.Chip,
    auto_layouts: bool = False,
) -> Account:
    """Compiles `update` and `apply_updates` for the mesh of the parameters; counts."""
    start = time.process_time()
    compiled = _compile.traced(tx, params, auto_layouts).lower().compile()
    seconds = time.process_time() - start
    text = compiled.as_text()
    weights, state = (
        local_bytes(params),
        local_bytes(_compile.shapes_of_state(tx, params)),
    )
    return Account(
        cheapest=_count.counted(text, chip, min),
        dearest=_count.counted(text, chip, max),
        temporary_bytes=compiled.memory_analysis().temp_size_in_bytes,
        numbers=memory.of_compiled(compiled, weights)["total"],
        seconds=seconds,
        pass_bytes=weights,
        floor_bytes=max(ADAMW_PASSES * weights, 3 * weights + 2 * state),
    )


def local_bytes(shapes: Any) -> int:
    """Bytes on each device of arrays that are sharded alike on all."""
    of = lambda x: math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
    return sum(map(of, jax.tree.leaves(shapes)))


def measure(args: argparse.Namespace) -> None:
    """Prints the table."""
    chip = _chips.CHIPS[args.platform]
    devices = _chips.devices(args.platform, args.devices)
    grid = jax.make_mesh((args.devices,), ("fsdp",), (AxisType.Auto,), devices=devices)
    params = args.shapes.params(grid)
    print(
        f"{args.shapes.elements / 1e6:.0f}M parameters in {args.shapes.matrices} "
        f"matrices, float32, {args.devices} {args.platform}, jax {jax.__version__}; "
        f"a pass is {local_bytes(params) / 1e6:.0f} MB"
    )
    header = "".join(f"{name:>{width}}" for name, width in COLUMNS.items())
    print(f"{'':26}{header}   TFLOP by precision; library calls")
    for label, name, placement in _rows(args, grid, params):
        try:
            tx = _compile.make_optimizer(name, placement, RANK | args.set)
            line = _line(account(tx, params, chip, args.auto_layouts), chip)
        except Exception as error:  # A step that does not compile is a finding.
            reason = " ".join(str(error).split()) or type(error).__name__
            line = f"  does not compile: {reason[:200]}"
        print(f"{label:26}{line}", flush=True)


def _rows(
    args: argparse.Namespace, mesh: Mesh, params: Any
) -> Iterator[tuple[str, str, Any]]:
    names = args.recipes
    if names == ["all"]:
        ours = _compile.recipe_names()
        ours = _compile.all_recipe_names() if mesh.size == 1 else ours
        names = ["optax.adamw", "optax.contrib.muon", *ours]
    specs = jax.tree.map(lambda leaf: leaf.sharding.spec, params)
    owners = om.owners(
        ("fsdp",),
        param_specs=specs,
        wire_dtype=jnp.dtype(args.wire),
        teams=args.teams,
    )
    for name in names:
        if mesh.size == 1 or name.startswith("optax."):
            yield name, name, None
            continue
        yield f"{name} (owners)", name, owners
        if not args.only_owners:
            yield f"{name} (placement=None)", name, None


def _line(found: Account, chip: _chips.Chip) -> str:
    low, high = found.cheapest, found.dearest

    def between(f, form: str) -> str:
        first, last = (format(f(counts), form) for counts in (low, high))
        return first if first == last else f"{first}-{last}"

    cells = (
        between(lambda c: c["kernels"], "d"),
        between(lambda c: c["bytes"] / found.pass_bytes, ".1f"),
        f"{found.temporary_bytes / MIB:.0f}",
        f"{found.numbers:.2f}",
        between(lambda c: c["syncs"], "d") if chip.is_gpu else "-",
        between(lambda c: c["collective bytes"] / MIB, ".0f")
        + f" in {high['collectives']}",
        f"{found.seconds:.0f}",
        between(lambda c: c["seconds"] * 1e3, ".1f"),
        between(lambda c: c["seconds"] / found.floor_seconds(c, chip), ".2f"),
    )
    aligned = zip(cells, COLUMNS.values(), strict=True)
    flops = {
        name: between(lambda c, name=name: c[f"flops {name}"] / 1e12, ".2f")
        for name in _named(high, "flops ")
    }
    calls = {
        name: between(lambda c, name=name: c[f"call {name}"], "d")
        for name in _named(high, "call ")
    }
    single = _named(high, "single ")
    parts = [f"{n} {name}" for name, n in (flops | calls).items()]
    parts += [f"{n} matrices one by one in {name}" for name, n in single.items()]
    return "".join(f"{c:>{w}}" for c, w in aligned) + "   " + ", ".join(parts)


def _named(counts: Mapping[str, float], prefix: str) -> dict[str, float]:
    return {
        name.removeprefix(prefix): n
        for name, n in sorted(counts.items())
        if name.startswith(prefix)
    }
