"""The plugin that counts the programs of each test, on tests made for it."""

import json
from pathlib import Path

import pytest
from _programs import LIMIT, MARK, TABLE, VERSION, Programs

ROOT = Path(__file__).parents[1]
pytest_plugins = ["pytester"]

TESTS = """
import jax
import numpy as np
import pytest

def some(count):
    for shape in range(1, count + 1):
        jax.jit(lambda x: x + 1)(np.zeros(shape))

@pytest.mark.parametrize("count", [2, 3, 4])
def test_plain(count):
    some(count)

@pytest.mark.programs(5, "four shapes, and one more")
def test_marked():
    some(4)

@pytest.mark.broad
def test_broad():
    some(9)
"""


@pytest.fixture
def run(pytester):
    """Runs these tests in this process."""
    marks = "".join(f"\n    {line}" for line in (MARK, "broad: x", "slow: x"))
    pytester.makeini(f"[pytest]\nmarkers ={marks}")
    pytester.makepyfile(test_made=TESTS)
    return lambda x: pytester.inline_run("-q", "-p", "no:cacheprovider", plugins=[x])


@pytest.mark.broad
def test_programs_of_fast_tests_are_counted_named_and_written(run, capsys, monkeypatch):
    file = Path("limits.json").resolve()
    file.write_text('{"jax": "0.0", "files": {"test_made.py": null, "other.py": 9}}')
    monkeypatch.setattr("_programs.TABLE", file)
    plugin = Programs(alone=True, write=True)
    run(plugin).assertoutcome(passed=5)
    found = {test.partition("::")[2]: len(names) for test, names, _ in plugin.found}
    wanted = {f"test_plain[{count}]": count for count in (2, 3, 4)}
    assert found == wanted | {"test_marked": 4}
    assert json.loads(file.read_text()) == {
        "jax": VERSION,
        "files": {"other.py": 9, "test_made.py": 4},
    }
    printed = capsys.readouterr().out
    assert "test_made.py: 13 programs" in printed
    assert "    4 test_plain (1): 4 jit(<lambda>)" in printed


@pytest.mark.broad
@pytest.mark.parametrize(
    ("limits", "failed"),
    [
        ({}, 1),
        ({"test_made.py": 4}, 0),
        ({"test_made.py": 2}, 2),
        ({"test_made.py": None}, 0),
        (None, 0),  # Those of another version of JAX.
    ],
)
def test_a_fast_test_over_its_limit_fails(run, capsys, monkeypatch, limits, failed):
    monkeypatch.setattr("_programs.table", lambda: limits)
    run(Programs(alone=False)).assertoutcome(passed=5 - failed, failed=failed)
    printed = capsys.readouterr().out
    said = "This fast test compiles 4 programs (of them 4 jit(<lambda>))"
    assert (said in printed) == bool(failed)


def test_the_table_is_of_fast_tests_that_exist():
    found = json.loads(TABLE.read_text())["files"]
    assert all((ROOT / name).is_file() for name in found)
    assert all(x is None or x > LIMIT for x in found.values())
    assert list(found) == sorted(found)
