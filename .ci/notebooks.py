"""Runs notebooks in place: `python .ci/notebooks.py notebooks/01_*.ipynb`.

Pictures get the alternative text of their cell (its metadata `alt`, which may have one
text per picture), and at most 256 colors, so that the files stay small.
"""

import argparse
import base64
import io
from pathlib import Path

import nbclient
import nbformat
from PIL import Image

ROOT = Path(__file__).parents[1]
COLORS = 256


def smaller(picture: str) -> str:
    """A picture (PNG in base 64) in these colors."""
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


def run(path: Path) -> None:
    """Executes a notebook from the root of the repository, and saves it."""
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(ROOT)}}
    nbclient.NotebookClient(
        notebook, timeout=2000, kernel_name="python3", resources=resources
    ).execute()
    finish(notebook)
    nbformat.write(notebook, path)
    print(f"{path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("notebooks", nargs="+", type=Path)
    for path in parser.parse_args().notebooks:
        run(path)
