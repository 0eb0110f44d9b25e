"""Each framework's model, read by its use: the axes of every leaf, beside two others.

    python -m examples.frameworks.uses                every framework
    python -m examples.frameworks.uses maxtext keras  some of them
    python -m examples.frameworks.uses --page FILE    writes the table, too

`matrices.by_use` traces the model as it is, with its scans, partitioning and named
arrays, and prints what it reads. That is compared, leaf by leaf, with the table that is
written by hand in the framework's module, and so are the framework's own numbers: those
of MaxText, names of axes, or what its adapter says. Nothing is trained.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

from examples.frameworks import _report
from examples.frameworks.__main__ import ROOT, Skipped, installed, variables
from examples.frameworks._environments import ENVIRONMENTS, Environment

HEAD = ("framework", "versions", "leaves", "own: as the table", "use: as the table")


def main() -> int:
    """Reads the models; the exit status of a test."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help="frameworks; all if none is named")
    parser.add_argument("--keep", type=pathlib.Path, help="keep environments here")
    parser.add_argument("--page", type=pathlib.Path, help="write the table here")
    args = parser.parse_args()
    if unknown := set(args.names) - set(ENVIRONMENTS):
        parser.error(f"names must be among {', '.join(ENVIRONMENTS)}, got {unknown}")
    rows: _report.Rows = [HEAD]
    faults: list[str] = []
    for name in args.names or ENVIRONMENTS:
        try:
            versions, found = _run(name, ENVIRONMENTS[name], args.keep)
        except Skipped as reason:
            rows.append((name, str(reason), "", "", ""))
            continue
        rows.append((name, versions, *cells(found)))
        for path, (got, want) in found["use"].items():
            faults.append(f"FAULT {name}: {path} is {got!r} by use, not {want!r}")
    print("\n".join([_report.aligned(rows), *faults]))
    if args.page:
        args.page.write_text(_report.list_table(rows))
    return int(bool(faults))


def cells(found: dict[str, Any]) -> tuple[str, str, str]:
    """The last three columns of a framework's row."""
    count = found["leaves"]
    asked = f", asks {len(found['asked'])}" if found["asked"] else ""
    right = count - len(found["use"]) - len(found["asked"])
    return str(count), str(count - len(found["own"])), f"{right}{asked}"


def _run(
    name: str, environment: Environment, keep: pathlib.Path | None
) -> tuple[str, dict[str, Any]]:
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        home = (keep or folder) / "-".join(("env", name))
        python, versions = installed(environment, home)
        command = [python, "-m", f"examples.frameworks.{name}", "used", folder]
        settings = variables(environment, folder / "compiled")
        subprocess.run(command, cwd=ROOT, env=settings, check=True)
        return versions, json.loads((folder / "used.json").read_text())


if __name__ == "__main__":
    sys.exit(main())
