"""`.ci/notebooks.py` runs notebooks by the wheel alone, and notices if they do not."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[1]


def _load():
    path = ROOT / ".ci/notebooks.py"
    spec = importlib.util.spec_from_file_location("run_notebooks", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


runner = _load()
BOOK = ROOT / "notebooks" / "01_from_adamw_to_here.ipynb"


def _notebook(*sources):
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    return nbformat.v4.new_notebook(cells=cells)


def test_the_first_cell_installs_the_wheel():
    before = nbformat.read(BOOK, as_version=4)
    after = runner.with_wheel(before, "a-1-py3-none-any.whl")
    lines = after.cells[1].source.splitlines()
    assert 'SOURCE = "./a-1-py3-none-any.whl[notebooks]"' in lines
    assert "git+" not in after.cells[1].source
    assert "git+" in before.cells[1].source  # What was read did not change.
    assert len(after.cells) == len(before.cells) + 1


@pytest.mark.parametrize("count", [0, 2])
def test_there_is_one_line_to_install_from(count):
    book = _notebook(*['SOURCE = "optax_matrix"'] * count, "1 + 1")
    with pytest.raises(ValueError, match=f"one line SOURCE.*got {count}"):
        runner.with_wheel(book, "a.whl")


INSTALLED = "/env/lib/site-packages/optax_matrix/__init__.py"


@pytest.mark.parametrize(
    ("package", "clone"), [(str(ROOT), []), (INSTALLED, ["examples"])]
)
def test_what_uses_the_clone_is_refused(package, clone):
    used = {"seconds": 1.5, "package": INSTALLED, "clone": []}
    assert runner.checked(json.dumps(used)) == 1.5
    used |= {"package": package, "clone": clone}
    with pytest.raises(ValueError, match="by the wheel alone"):
        runner.checked(json.dumps(used))


def test_outputs_are_compared_without_pictures():
    stream = nbformat.v4.new_output("stream", text="a\n")
    value = nbformat.v4.new_output("execute_result", data={"text/plain": "8"})
    picture = nbformat.v4.new_output("display_data", data={"image/png": "00"})
    cell = nbformat.v4.new_code_cell("1", outputs=[stream, value, picture])
    assert [*runner.printed([cell, nbformat.v4.new_markdown_cell("b")])] == ["a\n8"]


def _fails(*_):
    raise RuntimeError("a cell\nraised this")


@pytest.mark.parametrize(
    ("run", "status", "said"),
    [
        (lambda *_: (100.0, "11 of 11"), 0, "11 of 11"),
        (lambda *_: (1e4, "11 of 11"), 1, "FAILED: more than 480 s"),
        (_fails, 1, "FAILED: raised this"),
    ],
)
def test_the_status_tells_whether_all_ran(
    monkeypatch, tmp_path, capsys, run, status, said
):
    wheel = tmp_path / "a.whl"
    wheel.touch()
    monkeypatch.setattr(runner, "run", run)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert runner.main(wheel, [BOOK, BOOK]) == status
    assert "PYTHONPATH" not in runner.os.environ
    assert said in capsys.readouterr().out


def test_a_missing_notebook_is_an_error_before_the_first_run():
    command = [sys.executable, str(ROOT / ".ci/notebooks.py"), "a.whl", "papers/01"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 2
    assert "give paths of files, as in notebooks/01_from" in found.stderr
