"""The notebooks run from top to bottom, and are committed as they ran."""

import json
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
LARGEST = 250_000  # bytes
# Their pictures are still of 72 or 80 dots per inch: running them takes the longest.

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SOURCE = f"optax_matrix[notebooks] @ git+{PROJECT['urls']['Repository']}"
INSTALL = f"""SOURCE = "{SOURCE}"
try:
    import optax_matrix as om
except ModuleNotFoundError:
    %pip install -q "$SOURCE"
    try:
        import optax_matrix as om
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "optax_matrix could not be installed from SOURCE: upload the wheel that "
            "`make dist` builds, or find the address of the repository, and set SOURCE."
        ) from None
"""

every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)


def _code(path):
    cells = json.loads(path.read_text())["cells"]
    return ["".join(c["source"]) for c in cells if c["cell_type"] == "code"]


def test_there_are_notebooks():
    assert NOTEBOOKS


@every_notebook
def test_is_committed_executed(path):
    notebook = json.loads(path.read_text())
    cells = [c for c in notebook["cells"] if c["cell_type"] == "code"]
    counts = [c["execution_count"] for c in cells]
    assert counts == list(range(1, len(cells) + 1)), "run it in one go"
    for output in (o for c in cells for o in c["outputs"]):
        assert output["output_type"] != "error", output["evalue"]
        assert output.get("name") != "stderr", output["text"]
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    assert path.stat().st_size < LARGEST


@every_notebook
def test_says_what_to_do_where_the_package_cannot_be_installed(path):
    """The first cell names its source once: the address that pyproject.toml has."""
    first = _code(path)[0]
    assert first.count(INSTALL) == 1
    assert first.count("SOURCE = ") == 1


def test_the_first_cell_without_the_package(monkeypatch):
    """It tries the address, and says in one sentence what to do."""
    tried = []
    cell = INSTALL.replace('%pip install -q "$SOURCE"', "tried.append(SOURCE)")
    monkeypatch.setitem(sys.modules, "optax_matrix", None)
    with pytest.raises(ModuleNotFoundError, match=r"`make dist` builds.* set SOURCE"):
        exec(cell, {"tried": tried})
    assert tried == [SOURCE]


@every_notebook
def test_pictures_have_alternative_texts_and_are_sharp(path):
    notebook = json.loads(path.read_text())
    assert 'plt.rcParams["figure.dpi"] = 120' in _code(path)[0]
    for cell in notebook["cells"]:
        outputs = cell.get("outputs", ())
        pictures = [o for o in outputs if "image/png" in o.get("data", ())]
        for picture in pictures:
            assert len(picture["metadata"]["image/png"]["alt"].split()) > 4


@every_notebook
def test_methods_have_one_look(path):
    """AdamW has no style of its own; notebooks that compare use the palette."""
    sources = _code(path)
    assert not [s for s in sources if '"black", "linewidth": 2.5' in s]
    compares = path.stem[:2] in {"01", "02", "09", "10"}
    assert any("diagnostics.method_style" in s for s in sources) == compares


@pytest.mark.slow
@every_notebook
def test_runs(path, monkeypatch):
    # Out of the repository's root, where the package is found without installing it;
    # if it were not, pip would have no index to turn to.
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    import nbclient
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(
        notebook,
        timeout=800,
        kernel_name="python3",
        resources={"metadata": {"path": str(ROOT)}},
    ).execute()
