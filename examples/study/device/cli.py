"""What the methods cost on the accelerator of this machine, by the clock.

    python -m examples.study device
    python -m examples.study device products kernels --out results
    python -m examples.study device steps --models small --names muon muoneq soap
    python -m examples.study device training --seconds 90

``products``: the rates of copies and of matrix products at each precision, and their
errors. ``kernels``: Newton-Schulz and its products, by XLA and by the kernels of
`linalg`. ``steps``: one optimizer step of every recipe, beside `optax.adamw` and
`optax.contrib.muon`. ``training``: a LLaMA of GPT-2 small's size on the shipped texts
for some seconds per method; it shows time and loss, and says nothing about quality.

Programs are compiled in several processes at once and timed in one process after
another. Each part prints a table and writes it as JSON to `--out`.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Sequence

PARTS = ("products", "kernels", "steps", "training")
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
    add("--names", nargs="+", metavar="NAME[:KEY=VALUE,...]", help="methods of a part")
    add("--models", nargs="+", choices=MODELS, default=list(MODELS), help="of `steps`")
    add("--seconds", type=float, default=90.0, help="of `training`, for each method")
    add("--limit", type=float, default=240.0, help="seconds to compile the programs")
    add("--workers", type=int, default=os.cpu_count() or 1, help="that compile")
    add("--tiny", action="store_true", help="sizes that a CPU can run, as a trial")
    args = parser.parse_args(argv)
    args.parts = args.parts or list(PARTS)
    if unknown := [part for part in args.parts if part not in PARTS]:
        parser.error(f"parts must be some of {', '.join(PARTS)}, got {unknown[0]!r}")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the parts, each in processes of its own; returns the exit code."""
    args = parse(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    # A process that has had its turn gives its memory back.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    failed = 0
    for part in args.parts:
        print(f"\n{part}", flush=True)
        if part in ("products", "kernels"):
            command = [sys.executable, "-m", f"examples.study.device.{part}"]
            options = ["--out", str(args.out)] + ["--tiny"] * args.tiny
            failed += subprocess.run([*command, *options], check=False).returncode != 0
            continue
        if part == "steps":
            from examples.study.device.steps import jobs, table
        else:
            from examples.study.device.training import jobs, table
        from examples.study.device._turns import run

        rows = run(jobs(args), args.workers, args.limit, args.out / f"{part}-workers")
        failed += any("error" in row for row in rows)
        (args.out / f"{part}.json").write_text(json.dumps(rows, indent=1))
        print(table(rows), flush=True)
    return min(failed, 1)
