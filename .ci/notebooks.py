"""Runs notebooks as a reader does: away from the clone, by the wheel alone.

    python -I .ci/notebooks.py dist/optax_matrix-*.whl [NOTEBOOK ...] [--write]

`make notebooks` builds the wheel and starts this program in a fresh environment, which
has a kernel and nothing else. The first cell of the first notebook installs the wheel,
as it would in Colab. Without names, all notebooks run. Their outputs are compared with
the committed ones; `--write` replaces those.

A written picture gets the alternative text of its cell (its metadata `alt`, which may
have one text per picture), and at most 256 colors, so that the files stay small.

Exit status 1: a notebook failed, imported the clone, or used more processor time than
two cores have in four minutes.
"""

import argparse
import base64
import copy
import io
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
from PIL import Image

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
COLORS = 256
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
    found, notebook = 0, copy.deepcopy(notebook)
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


def checked(last: str) -> float:
    """The processor seconds that the last cell printed.

    Raises:
        ValueError: If the notebook used the clone.
    """
    used = json.loads(last)
    if "site-packages" not in used["package"] or used["clone"]:
        raise ValueError(f"it must run by the wheel alone, got {used}.")
    return used["seconds"]


def smaller(picture: str) -> str:
    """A picture (PNG in base 64) in few colors."""
    image = Image.open(io.BytesIO(base64.b64decode(picture))).convert("RGB")
    buffer = io.BytesIO()
    few = image.quantize(COLORS, dither=Image.Dither.NONE)
    few.save(buffer, "PNG", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode()


def finish(notebook: nbformat.NotebookNode) -> None:
    """Puts alternative texts where nbconvert and MyST-NB look for them."""
    for cell in notebook.cells:
        outputs = cell.get("outputs", ())
        pictures = [o for o in outputs if "image/png" in o.get("data", ())]
        texts = cell.metadata.get("alt", [])
        texts = [texts] if isinstance(texts, str) else texts
        for output, text in zip(pictures, texts, strict=True):
            output.data["image/png"] = smaller(output.data["image/png"])
            output.metadata["image/png"] = {"alt": text}
        if pictures:
            cell.metadata["mystnb"] = {"image": {"alt": texts[0]}}
        cell.metadata.pop("execution", None)


def run(path: Path, wheel: Path, folder: Path, write: bool) -> tuple[float, str]:
    """Executes a copy in a folder; returns processor seconds, and a remark."""
    committed = nbformat.read(path, as_version=4)
    notebook = with_wheel(committed, wheel.name)
    resources = {"metadata": {"path": str(folder)}}
    nbclient.NotebookClient(
        notebook, timeout=3600, kernel_name="python3", resources=resources
    ).execute()
    *now, last = printed(notebook.cells)
    seconds, before = checked(last), printed(committed.cells)
    same = sum(a == b for a, b in zip(now, before, strict=True))
    if write:
        notebook.cells.pop()
        for cell, old in zip(notebook.cells, committed.cells, strict=True):
            cell.source = old.source
        notebook.metadata = committed.metadata
        finish(notebook)
        nbformat.write(notebook, path)
        return seconds, f"written, {path.stat().st_size:,} bytes"
    return seconds, f"{same} of {len(now)} cells print what is committed"


def main(wheel: Path, paths: list[Path], write: bool = False) -> int:
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
                seconds, remark = run(path, wheel, Path(folder), write)
            except Exception as error:  # A notebook that fails is a line.
                lines = str(error).strip().splitlines() or [type(error).__name__]
                seconds, remark = 0.0, f"FAILED: {lines[-1]}"
            if seconds > LIMIT:
                remark = f"FAILED: more than {LIMIT} s; {remark}"
            failed += [path] * ("FAILED" in remark)
            wall = time.monotonic() - start
            name = f"{path.parent.name}/{path.stem}"
            print(f"{name:38}{seconds:4.0f} s {wall:5.0f} s of wall  {remark}")
            sys.stdout.flush()
    print(f"{len(paths) - len(failed)} of {len(paths)} notebooks ran")
    return int(bool(failed))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("notebooks", nargs="*", type=Path)
    parser.add_argument(
        "--write", action="store_true", help="replace what is committed"
    )
    given = parser.parse_args()
    every = given.notebooks or sorted(NOTEBOOKS.rglob("[0-9]*.ipynb"))
    paths = [path.resolve() for path in every]
    if missing := [path for path in paths if not path.is_file()]:
        parser.error(
            f"there is no notebook {missing[0]}; give paths of files, as in "
            "notebooks/01_from_adamw_to_here.ipynb"
        )
    sys.exit(main(given.wheel.resolve(), paths, given.write))
