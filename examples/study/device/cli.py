"""What the methods cost on the accelerator of this machine, by the clock.

    python -m examples.study device
    python -m examples.study device products kernels --out results
    python -m examples.study device steps --names muoneq soap:precision=fast
    python -m examples.study device training --seconds 90
    python -m examples.study device steps training --ahead h200 --programs programs
    python -m examples.study device steps training --programs programs

``products``: the rates of copies and of matrix products at each precision, and their
errors. ``kernels``: Newton-Schulz and its products, by XLA and by the kernels of
`linalg`. ``steps``: one optimizer step of every recipe, beside `optax.adamw` and
`optax.contrib.muon`. ``training``: a LLaMA of GPT-2 small's size on the shipped texts
for some seconds per method; it shows time and loss, and says nothing about quality.

Programs are compiled in several processes at once and timed one after another. Each
part prints a table and writes what it measured as JSON to `--out`. `--ahead` compiles
``steps`` and ``training`` for a GPU on a machine that has none; set
``XLA_FLAGS=--xla_gpu_enable_triton_gemm=false`` for it, since only the GPU shows which
tiles are fast, and the library's products need none. That machine needs the same
JAX and the same sources of the package; other programs are compiled again.
"""

import argparse
import importlib
import json
import os
import pathlib
import tempfile
from collections.abc import Sequence
from typing import Any

from examples.study.device import _programs, _turns

PARTS = ("products", "kernels", "steps", "training")
AHEAD = PARTS[2:]
MODELS = ("small", "medium")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.study device",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("parts", nargs="*", help=f"some of {', '.join(PARTS)}; without any, all")
    add("--out", type=pathlib.Path, default=pathlib.Path("device-results"))
    add("--names", nargs="+", metavar="NAME[:KEY=VALUE,...]", help="of `steps`")
    add("--models", nargs="+", choices=MODELS, default=list(MODELS), help="of `steps`")
    add("--before", help="another checkout, with this study, whose steps to add")
    add("--before-names", nargs="+", help="the methods from there; without any, all")
    add("--case", help="of `kernels`: the beginning of a name, such as newton_schulz")
    add("--methods", nargs="+", metavar="NAME", help="of `training`")
    add("--seconds", type=float, default=90.0, help="of `training`, for each method")
    add("--limit", type=float, default=600.0, help="seconds to compile all programs")
    add("--workers", type=int, default=os.cpu_count() or 1, help="compile at a time")
    add("--programs", help="folder of compiled programs, to load what it has")
    add("--ahead", choices=(*_programs.CHIPS, _programs.HERE), help="compile only")
    add("--profile", action="store_true", help="of `steps`, by kernel")
    add("--tiny", action="store_true", help="sizes that a CPU can run, as a trial")
    args = parser.parse_args(argv)
    args.parts = args.parts or list(AHEAD if args.ahead else PARTS)
    if unknown := [part for part in args.parts if part not in PARTS]:
        parser.error(f"parts must be some of {', '.join(PARTS)}, got {unknown[0]!r}")
    if args.ahead and not args.programs:
        parser.error("--ahead needs --programs, the folder to fill")
    if args.ahead and (others := set(args.parts) - set(AHEAD)):
        parser.error(f"--ahead compiles {', '.join(AHEAD)}, got {others.pop()!r}")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the parts, each job in a process of its own; returns the exit code."""
    args = parse(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    # A process gives back what it does not need, and all of it after its turn.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    modules = {
        part: importlib.import_module(f"examples.study.device.{part}")
        for part in args.parts
    }
    shared = {"ahead": args.ahead, "programs": args.programs, "profile": args.profile}
    jobs = [
        {"module": module.__name__, **shared, **job}
        for module in modules.values()
        for job in module.jobs(args)
    ]
    rows: dict[str, list[dict[str, Any]]] = {part: [] for part in args.parts}
    with tempfile.TemporaryDirectory() as folder:
        limits = args.workers, args.limit, args.seconds + 120
        for row in _turns.run(jobs, *limits, pathlib.Path(folder)):
            part = row["module"].rsplit(".", 1)[1]
            rows[part].append(row)
            if args.ahead:
                print(row["name"], row.get("error") or row["compile_s"], flush=True)
                continue
            (args.out / f"{part}.json").write_text(json.dumps(rows[part], indent=1))
            if len(rows[part]) == sum(job["module"] == row["module"] for job in jobs):
                print(f"\n{part}\n{modules[part].table(rows[part])}", flush=True)
    return int(any("error" in row for part in rows.values() for row in part))
