"""The code of the guides runs, and shows what it shows."""

import doctest
from pathlib import Path

import pytest

GUIDES = sorted((Path(__file__).parents[1] / ".docs" / "guides").glob("*.rst"))


def test_there_are_guides():
    assert GUIDES


@pytest.mark.parametrize("path", GUIDES, ids=lambda path: path.stem)
def test_guide(path):
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    result = doctest.testfile(str(path), module_relative=False, optionflags=flags)
    assert not result.failed
