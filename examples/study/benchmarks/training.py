"""When a whole training step exchanges gradients with their owners, by the compiler.

    python -m examples.study training --topology v5e:4x4 --mesh fsdp=4,tp=4

Compiles the step of `examples.train_sharded`, model and optimizer, for a TPU topology.
Prints how many all-to-alls the optimizer has, and how many of them are hidden: between
start and end there is other work that takes as long, by the compiler's estimates and
the published rate of the chip's links. Then how many are in flight while matrices are
multiplied, and how many while those of the backward pass are. All of this with the norm
of all gradients clipped and without, with the compiler's default and with asynchronous
all-to-alls. Needs `pip install '.[aot]'`.
"""

import argparse
from collections.abc import Sequence
from typing import Any

from examples.study.benchmarks import _training
from examples.study.benchmarks.aot import with_compiler

SIZES = {"layers": 4, "embed": 512, "mlp": 2048, "context": 512}
COLUMNS = ("all-to-alls", "hidden", "beside products", "of the backward pass")
COLUMNS += ("compile s",)
BACKWARD = "transpose(jvp"
CLOCKS = {"v5e": 1.5e9, "v5p": 1.75e9}  # Cycles a second.


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    about = __doc__.splitlines()[0]
    parser = _training.parser(
        "training", about, "fsdp=4,tp=4", "muon", **SIZES, batch=16
    )
    return parser.parse_args(argv)


def model_of(args: argparse.Namespace):
    """The model, with heads of 64."""
    import dataclasses

    from examples.pretrain import config

    heads = max(args.embed // 64, 1)
    sizes = {name: getattr(args, name) for name in SIZES}
    sizes |= {"heads": heads, "kv_heads": heads, "scan": False}
    return dataclasses.replace(config.SIZES["tiny"], **sizes)


def hidden(flights: Sequence[Any], topology: str) -> int | str:
    """How many have as much other work beside as they take; "-" without a clock."""
    from optax_matrix.sharding._chips import CHIPS

    chip = topology.split(":")[0]
    if chip not in CLOCKS:
        return "-"
    needed = lambda x: x.bytes / CHIPS[chip].links * CLOCKS[chip]
    return sum(x.cycles >= needed(x) for x in flights)


def measure(args: argparse.Namespace) -> None:
    """Prints the table."""
    import time

    from examples import train_sharded
    from examples.study.benchmarks import _compile, _overlap

    if args.optimizer not in train_sharded.RECIPES:
        raise ValueError(
            f"--optimizer must be one of {', '.join(train_sharded.RECIPES)}, got "
            f"{args.optimizer!r}."
        )
    config = model_of(args)
    mesh = _compile.make_mesh(args.topology, args.mesh, "auto")
    windows = _training.windows_of(args, mesh)
    print(f"{args.optimizer}, {config}, {args.topology} as {args.mesh}")
    print(f"{'':26}" + "".join(f"{c:>22}" for c in COLUMNS))
    for clip in (train_sharded.CLIP, None):
        for options in (None, _compile.ASYNCHRONOUS):
            start = time.process_time()
            program = train_sharded.prepare(config, mesh, args.optimizer, 1e-3, 8, clip)
            lowered = program.step.trace(program.state, windows).lower()
            text = lowered.compile(compiler_options=options).as_text()
            found = _overlap.flights(text, "all-to-all")
            backward, total = _overlap.overlapped(text, "all-to-all", BACKWARD)
            label = ("clipped" if clip else "not clipped", "async" if options else "")
            numbers = (
                total,
                hidden(found, args.topology),
                sum(x.products for x in found),
                backward,
                f"{time.process_time() - start:.0f}",
            )
            line = "".join(f"{n:>22}" for n in numbers)
            print(f"{', '.join(filter(None, label)):26}" + line, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns the exit code."""
    return with_compiler(measure, parse(argv))
