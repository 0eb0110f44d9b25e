"""The notebooks run from top to bottom, and are committed as they ran."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
LARGEST = 250_000  # bytes

every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)


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
