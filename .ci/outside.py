"""Runs notebooks as a reader does: away from the clone, by the wheel alone.

    python -I .ci/outside.py dist/optax_matrix-*.whl [NOTEBOOK ...]

`make notebooks` builds the wheel and starts this program in a fresh environment, which
has a kernel and nothing else. The first cell of the first notebook installs the wheel,
as it would in Colab. Without names, all notebooks run. Outputs are compared with the
committed ones; the committed files do not change.

Exit status 1: a notebook failed, imported the clone, or used more processor time than
two cores have in four minutes.
"""

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import nbclient
import nbformat

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
CORES, MINUTES = 2, 4
LIMIT = CORES * MINUTES * 60  # Seconds of processors.
SOURCE = re.compile(r'^SOURCE = ".*"$', re.MULTILINE)

# Runs last, in the kernel. What pip uses is not the notebook's.
LAST = """import importlib.util, json, os, optax_matrix
print(json.dumps({
    "seconds": sum(os.times()[:2]),
    "package": optax_matrix.__file__,
    "clone": [x for x in ("examples", "tests") if importlib.util.find_spec(x)],
}))"""


def with_wheel(notebook: nbformat.NotebookNode, wheel: str) -> nbformat.NotebookNode:
    """The notebook whose first cell installs this wheel, and that says what it used.

    Raises:
        ValueError: If it does not have one line `SOURCE = "..."`.
    """
    found = 0
    for cell in notebook.cells:
        if cell.cell_type == "code":
            line = f'SOURCE = "./{wheel}[notebooks]"'
            cell.source, count = SOURCE.subn(line, cell.source)
            found += count
    if found != 1:
        raise ValueError(f'a notebook must have one line SOURCE = "...", got {found}.')
    notebook.cells.append(nbformat.v4.new_code_cell(LAST))
    return notebook


def printed(cells: list) -> Iterator[str]:
    """What each code cell printed or returned, without pictures."""
    for cell in cells:
        if cell["cell_type"] == "code":
            outs = cell["outputs"]
            text = [o.get("text", o.get("data", {}).get("text/plain")) for o in outs]
            yield "".join("".join(part or "") for part in text)


def run(path: Path, wheel: Path, folder: Path) -> tuple[float, str]:
    """Executes a copy in a folder; returns processor seconds, and a remark.

    Raises:
        ValueError: If it used the clone.
    """
    before = nbformat.read(path, as_version=4)
    committed = [*printed(before.cells)]
    notebook = with_wheel(before, wheel.name)
    resources = {"metadata": {"path": str(folder)}}
    nbclient.NotebookClient(
        notebook, timeout=3600, kernel_name="python3", resources=resources
    ).execute()
    *now, last = printed(notebook.cells)
    used = json.loads(last)
    if "site-packages" not in used["package"] or used["clone"]:
        raise ValueError(f"it must run by the wheel alone, got {used}.")
    same = sum(a == b for a, b in zip(now, committed, strict=True))
    return used["seconds"], f"{same} of {len(now)} cells print what is committed"


def main(wheel: Path, paths: list[Path]) -> int:
    """Runs all; prints a line for each; returns the exit status."""
    failed = []
    for name in [name for name in os.environ if name.startswith("PYTHON")]:
        del os.environ[name]  # The kernel gets no path to the clone.
    print(f"{sys.executable}, {wheel.name}; at most {LIMIT} processor seconds each")
    for path in paths:
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(wheel, folder)
            start = time.monotonic()
            try:
                seconds, remark = run(path, wheel, Path(folder))
            except Exception as error:
                lines = str(error).strip().splitlines() or [type(error).__name__]
                seconds, remark = 0.0, f"FAILED: {lines[-1]}"
            if seconds > LIMIT:
                remark = f"FAILED: more than {LIMIT} s; {remark}"
            if "FAILED" in remark:
                failed.append(path)
            wall = time.monotonic() - start
            name = path.relative_to(NOTEBOOKS).with_suffix("")
            print(f"{name!s:34}{seconds:6.0f} s{wall:7.0f} s of wall  {remark}")
            sys.stdout.flush()
    print(f"{len(paths) - len(failed)} of {len(paths)} notebooks ran")
    return bool(failed)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("notebooks", nargs="*", type=Path)
    given = parser.parse_args()
    every = given.notebooks or sorted(NOTEBOOKS.rglob("[0-9]*.ipynb"))
    sys.exit(main(given.wheel.resolve(), [path.resolve() for path in every]))
