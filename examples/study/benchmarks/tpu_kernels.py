r"""Newton-Schulz by XLA and by our own kernels on TPUs, by the compiler, without one.

    python -m examples.study tpu-kernels --platforms v5e v6e

Compiles five steps for one chip: by XLA with factors in float32 and in bfloat16, and by
the kernels of `examples.study.tpu` in bfloat16, on stacks of float32 matrices. For each
kernel of the program, the time is that of its products at the chip's rate, of its bytes
in main memory, or of the compiler's schedule at the chip's clock, whichever is longest;
the sum is printed, and in parentheses the sum without the schedules. The products of
our own kernels are those that we state, their bytes those of operands and results;
their schedules are the compiler's. Prints the processor seconds of compiling too. Needs
`pip install '.[aot]'`.
"""

import argparse
import functools
import os
import tempfile
from collections.abc import Sequence

from examples.study.benchmarks import aot

CHIPS = ("v5e", "v5p", "v6e")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.study tpu-kernels",
        description=(__doc__ or "").splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--platforms", nargs="+", choices=CHIPS, default=CHIPS)
    parser.add_argument("--small", action="store_true", help="one small stack")
    return parser.parse_args(argv)


def measure(args: argparse.Namespace) -> None:
    """Prints the table."""
    import time

    import jax
    import jax.numpy as jnp
    from jax.sharding import AxisType, NamedSharding, PartitionSpec

    import optax_matrix as om
    from examples.study import tpu
    from examples.study.benchmarks import _chips, _count, _schedule, kernels

    by_xla = functools.partial(om.linalg.newton_schulz, kernel="xla")
    forms = {
        "XLA float32": functools.partial(by_xla, compute_dtype=jnp.float32),
        "XLA bfloat16": functools.partial(by_xla, compute_dtype=jnp.bfloat16),
        "own bfloat16": tpu.newton_schulz,
    }
    print(f"five steps, ms by the compiler (without schedules), jax {jax.__version__}")
    header = "".join(f"{name:>16}{'s':>5}" for name in forms)
    print(f"{'':6}{'':18}{header}")
    for chip in args.platforms:
        devices = _chips.devices(chip, 1)
        mesh = jax.make_mesh((1,), ("x",), (AxisType.Auto,), devices=devices)
        sharding = NamedSharding(mesh, PartitionSpec())
        for shape in kernels.SMALL[:1] if args.small else kernels.SHAPES:
            x = jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)
            cells = []
            for form in forms.values():
                run = functools.partial(form, steps=kernels.STEPS)
                start = time.process_time()
                text = jax.jit(run).lower(x).compile().as_text() or ""
                seconds = time.process_time() - start
                known = _schedule.cycles(args.folder)
                counted = [
                    _count.counted(text, _chips.CHIPS[chip], schedule=cycles)
                    for cycles in (known, {})
                ]
                ms = [1e3 * found["seconds"] for found in counted]
                cells.append(f"{ms[0]:.2f} ({ms[1]:.2f})".rjust(16) + f"{seconds:5.0f}")
            name = " x ".join(map(str, shape))
            print(f"{chip:6}{name:18}{''.join(cells)}", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns the exit code."""
    args = parse(argv)
    args.platform = None
    with tempfile.TemporaryDirectory() as folder:
        from examples.study.benchmarks import _schedule

        args.folder = folder
        os.environ["LIBTPU_INIT_ARGS"] = _schedule.arguments(folder)
        return aot.with_compiler(measure, args)
