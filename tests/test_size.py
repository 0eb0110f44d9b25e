"""The package stays small: a file that grows has to make room."""

import pytest
import size

TOTAL = sum(size.by_package().values(), size.collections.Counter())


@pytest.mark.parametrize(("kind", "most"), [("code", 15_400), ("all", 34_240)])
def test_the_package_is_no_longer_than(kind, most):
    assert (TOTAL.total() if kind == "all" else TOTAL[kind]) <= most


def test_kinds_of_lines():
    text = '''"""A module."""
import os

# Why.
X = """Text
of a value."""


def f():
    """A function,
    on two lines."""
    return os
'''
    wanted = {"docstrings": 3, "imports": 1, "comments": 1, "code": 4, "blank": 3}
    assert size.count(text) == wanted
