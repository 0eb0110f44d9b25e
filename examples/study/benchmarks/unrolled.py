"""Memory of a training step whose layers are a Python loop, by the compiler.

    python -m examples.study unrolled --topology v5e:4x4 --mesh fsdp=16
    python -m examples.study unrolled --platform h100 --mesh fsdp=8

Compiles the step of `examples.train_sharded`, model with rematerialized layers and
optimizer, for a TPU topology or for the chips of a platform. Prints temporary and
argument memory of a device for AdamW and for a recipe with owners, both with layers
that are not tied (`om.sharding.tie`), and for the recipe with tied layers. On TPUs a
recipe has a row with the compiler's defaults and one with asynchronous all-to-alls, and
all rows have the compiler's estimate of all cycles, which leaves out waits. Needs `pip
install '.[aot]'`, or `'.[aot-cuda]'` with `--platform`.
"""

import argparse
from collections.abc import Sequence

from examples.study.benchmarks import _training
from examples.study.benchmarks.aot import HOPPER, with_compiler

SIZES = {"layers": 4, "embed": 1024, "mlp": 4096, "vocab": 8192, "context": 1024}
COLUMNS = ("temporary MiB", "arguments MiB", "cycles / 10^6", "compile s")
ROWS = ("adamw", "untied", "tied")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    about = __doc__.splitlines()[0]
    parser = _training.parser("unrolled", about, "fsdp=16", "muoneq", **SIZES, batch=32)
    add = parser.add_argument
    add("--platform", choices=HOPPER, help="eight of these GPUs instead")
    add("--rows", nargs="+", choices=ROWS, default=ROWS)
    return parser.parse_args(argv)


def measure(args: argparse.Namespace) -> None:
    """Prints the table."""
    import time

    from examples.pretrain.config import ModelConfig
    from examples.study.benchmarks import _compile, _cycles

    heads = max(args.embed // 128, 1)
    config = ModelConfig(
        **{name: getattr(args, name) for name in SIZES},
        **{"heads": heads, "kv_heads": heads, "scan": False, "remat": True},
        dtype="bfloat16",
    )
    mesh = _mesh(args)
    windows = _training.windows_of(args, mesh)
    where = args.platform or args.topology
    print(f"{args.optimizer}, {config}, {where} as {args.mesh}")
    print(f"{'':26}" + "".join(f"{c:>16}" for c in COLUMNS))
    for row in args.rows:
        # Only owners have all-to-alls, and the option is for TPUs.
        has_option = row != "adamw" and not args.platform
        for options in (None, _compile.ASYNCHRONOUS) if has_option else (None,):
            start = time.process_time()
            lowered = _lowered(row, config, mesh, args.optimizer, windows)
            compiled = lowered.compile(compiler_options=options)
            memory = compiled.memory_analysis()
            cycles = 0 if args.platform else _cycles.cycles(compiled.as_text())
            numbers = (
                f"{memory.temp_size_in_bytes / 2**20:.1f}",
                f"{memory.argument_size_in_bytes / 2**20:.1f}",
                f"{cycles / 1e6:.2f}" if cycles else "-",
                f"{time.process_time() - start:.0f}",
            )
            label = row + ", async" * bool(options)
            print(f"{label:26}" + "".join(f"{n:>16}" for n in numbers), flush=True)


def _mesh(args: argparse.Namespace):
    import math

    import numpy as np
    from jax.sharding import AxisType, Mesh

    from examples.study.benchmarks import _chips, _compile

    if args.platform is None:
        return _compile.make_mesh(args.topology, args.mesh, "auto")
    if math.prod(args.mesh.values()) != 8:
        raise ValueError(f"--mesh must have 8 devices, got {args.mesh}; as in fsdp=8.")
    devices = np.array(_chips.devices(args.platform, 8))
    grid, types = tuple(args.mesh.values()), (AxisType.Auto,) * len(args.mesh)
    return Mesh(devices.reshape(grid), tuple(args.mesh), axis_types=types)


def _lowered(row: str, config, mesh, optimizer: str, windows):
    """The step of a row, not compiled."""
    import contextlib
    from unittest import mock

    import jax.numpy as jnp
    import optax

    import optax_matrix as om
    from examples import train_sharded
    from examples.study.benchmarks import _compile

    if row == "adamw":
        tx = optax.adamw(1e-3)
    else:
        _, shardings = train_sharded.weights_of(config, mesh)
        wire = {"param_specs": shardings, "wire_dtype": jnp.bfloat16}
        placement = om.owners(mesh.axis_names, **wire)
        tx = _compile.make_optimizer(optimizer, placement)
    program = train_sharded.program_of(config, mesh, tx)
    untied = mock.patch.object(om.sharding, "tie", lambda *trees: trees)
    with untied if row != "tied" else contextlib.nullcontext():
        return program.step.trace(program.state, windows).lower()


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns the exit code."""
    return with_compiler(measure, parse(argv))
