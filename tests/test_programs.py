"""The plugin that counts the programs of each test, on tests made for it."""

import pytest
from _programs import MARK, Programs

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


@pytest.mark.broad
def test_programs_of_fast_tests_are_counted_and_named(pytester, capsys):
    marks = "".join(f"\n    {line}" for line in (MARK, "broad: x", "slow: x"))
    pytester.makeini(f"[pytest]\nmarkers ={marks}")
    pytester.makepyfile(test_made=TESTS)
    plugin = Programs(alone=True)
    pytester.inline_run("-q", "-p", "no:cacheprovider", plugins=[plugin])

    found = {test.partition("::")[2]: x for test, *x in plugin.found}
    assert {test: (len(names), most) for test, (names, most) in found.items()} == {
        **{f"test_plain[{count}]": (count, 3) for count in (2, 3, 4)},
        "test_marked": (4, 5),
    }
    printed = capsys.readouterr().out
    assert "test_made.py: 13 programs, 1 of 4 tests over" in printed
    assert "    4 test_plain (1): 4 jit(<lambda>)" in printed
