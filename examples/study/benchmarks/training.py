"""When a whole training step exchanges gradients with their owners, by the compiler.

    python -m examples.study training --topology v5e:4x4 --mesh fsdp=4,tp=4

Compiles the step of `examples.train_sharded`, model and optimizer, for a TPU topology.
Prints how many of the optimizer's all-to-alls are in flight while matrices are
multiplied, and how many while those of the backward pass are: with the norm of all
gradients clipped and without, with the compiler's default and with asynchronous
all-to-alls. Needs `pip install '.[aot]'`.
"""

import argparse
from collections.abc import Sequence

from examples.study.benchmarks import _training
from examples.study.benchmarks.aot import with_compiler

SIZES = {"layers": 4, "embed": 512, "mlp": 2048, "context": 512}
COLUMNS = ("all-to-alls", "beside products", "of the backward pass", "compile s")
BACKWARD = "transpose(jvp"


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    about = __doc__.splitlines()[0]
    parser = _training.parser(
        "training", about, "fsdp=4,tp=4", "muon", **SIZES, batch=16
    )
    return parser.parse_args(argv)


def measure(args: argparse.Namespace) -> None:
    """Prints the table."""
    import dataclasses
    import time

    from examples import train_sharded
    from examples.pretrain.config import SIZES
    from examples.study.benchmarks import _compile, _hlo

    if args.optimizer not in train_sharded.RECIPES:
        raise ValueError(
            f"--optimizer must be one of {', '.join(train_sharded.RECIPES)}, got "
            f"{args.optimizer!r}."
        )
    heads = max(args.embed // 64, 1)
    config = dataclasses.replace(
        SIZES["tiny"],
        **{name: getattr(args, name) for name in SIZES},
        **{"heads": heads, "kv_heads": heads, "scan": False},
    )
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
            beside, total = _hlo.overlapped(text, "all-to-all")
            backward, _ = _hlo.overlapped(text, "all-to-all", BACKWARD)
            label = ("clipped" if clip else "not clipped", "async" if options else "")
            numbers = (total, beside, backward, f"{time.process_time() - start:.0f}")
            line = "".join(f"{n:>22}" for n in numbers)
            print(f"{', '.join(filter(None, label)):26}" + line, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns the exit code."""
    return with_compiler(measure, parse(argv))
