"""Makes the environments, runs the trials, prints the table.

    python -m examples.frameworks                every framework
    python -m examples.frameworks maxtext keras  some of them
    python -m examples.frameworks --results FOLDER --page FILE

The last keeps each framework's result in the folder; the table, which the page has as
well, is then of all that the folder has, from earlier runs too.

It needs nothing but Python; each framework's environment is deleted after its run.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from examples.frameworks import _report
from examples.frameworks._environments import ENVIRONMENTS, Environment

ROOT = pathlib.Path(__file__).parents[2]


class Skipped(Exception):
    """A framework that this machine cannot run, and why."""


def main() -> int:
    """Runs the frameworks that were named, or all; the exit status of a test."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help="frameworks; all if none is named")
    parser.add_argument("--keep", type=pathlib.Path, help="keep environments here")
    parser.add_argument("--results", type=pathlib.Path, help="keep results here")
    parser.add_argument("--page", type=pathlib.Path, help="write the table here")
    args = parser.parse_args()
    unknown = set(args.names) - set(ENVIRONMENTS)
    if unknown:
        parser.error(f"names must be among {', '.join(ENVIRONMENTS)}, got {unknown}")
    results = {}
    for name in args.names or ENVIRONMENTS:
        environment = ENVIRONMENTS[name]
        try:
            results[name] = _run(name, environment, args.keep)
        except Skipped as reason:
            results[name] = _report.Result(skipped=str(reason))
        print(_report.lines(name, results[name]), flush=True)
        if args.results:
            args.results.mkdir(exist_ok=True)
            kept = json.dumps(dataclasses.asdict(results[name]))
            (args.results / f"{name}.json").write_text(kept)
    if args.results:
        files = {name: args.results / f"{name}.json" for name in ENVIRONMENTS}
        results = {
            name: _report.Result(**json.loads(file.read_text()))
            for name, file in files.items()
            if file.exists()
        }
    print(_report.table(results))
    if args.page:
        args.page.write_text(_report.page(results))
    return _report.status(results)


def _run(
    name: str, environment: Environment, keep: pathlib.Path | None
) -> _report.Result:
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        home = (keep or folder) / "-".join(("env", name))
        try:
            python, versions = installed(environment, home)
            for phase in ("first", "resumed"):
                command = [python, "-m", f"examples.frameworks.{name}", phase, folder]
                settings = variables(environment, folder / "compiled")
                run = subprocess.run(command, cwd=ROOT, env=settings)
                if run.returncode:
                    error = f"the {phase} process ended with {run.returncode}"
                    return _report.Result(versions, error=error)
            phases = [
                json.loads((folder / f"{phase}.json").read_text())
                for phase in ("first", "resumed")
            ]
            return _report.Result(versions, *phases)
        finally:
            if not keep:
                shutil.rmtree(home, ignore_errors=True)


def installed(environment: Environment, home: pathlib.Path) -> tuple[str, str]:
    """The environment's interpreter, and the versions of the framework and of JAX."""
    if environment.source and not os.environ.get(environment.source):
        raise Skipped(f"set {environment.source} to a checkout of its source")
    base = shutil.which(f"python3.{environment.python}")
    if base is None or subprocess.run([base, "-V"], capture_output=True).returncode:
        raise Skipped(f"python3.{environment.python} is not here")
    python = str(home / "bin" / "python")
    if not home.exists():
        subprocess.run([base, "-m", "venv", home], check=True)
        # Kauldron's requirements take pip a quarter of an hour to resolve.
        subprocess.run([python, "-m", "pip", "install", "-q", "uv"], check=True)
        uv = [python, "-m", "uv", "pip", "install", "-q", "--python", python]
        done = subprocess.run(
            [*uv, "-e", str(ROOT), *environment.requirements],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            shutil.rmtree(home, ignore_errors=True)
            raise Skipped("not installed: " + done.stderr.strip().split("\n")[-1])
    names = tuple(filter(None, (environment.package, "jax")))
    ask = f"import importlib.metadata as m; print(*map(m.version, {names!r}))"
    found = subprocess.run(
        [python, "-c", ask], check=True, capture_output=True, text=True
    )
    pairs = zip(names, found.stdout.split(), strict=True)
    return python, ", ".join(map(" ".join, pairs))


def variables(environment: Environment, compiled: pathlib.Path) -> dict[str, str]:
    """Eight devices on the processor, this checkout and the framework's source."""
    paths = [str(ROOT), os.environ.get(environment.source or "", "")]
    return {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        # Compiling takes most of the time; a program is compiled once.
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "JAX_COMPILATION_CACHE_DIR": str(compiled),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "1",
        # XLA's threads. With no more than devices, collectives waited for each other.
        "NPROC": "32",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }


if __name__ == "__main__":
    sys.exit(main())
