"""The counts of `size.py`."""

import size


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
