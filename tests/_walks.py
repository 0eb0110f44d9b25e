"""Tests that walk over names: one test, whose message lists all names that fail."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import pytest

MARK = "walk: made by `_walks.walk`; `-k walk` selects these, as no id has a name"
# What a test raises; `pytest.fail` and `pytest.raises` raise no Exception.
FAILURES = (Exception, pytest.fail.Exception)


def walk(argnames, argvalues):
    """Like `pytest.mark.parametrize`, but one test instead of one for each value.

    For checks of milliseconds that compare no results of programs. The values
    share the fixtures, and have no marks.
    """
    names = [argnames] if isinstance(argnames, str) else list(argnames)
    cases = [_case(x, one=isinstance(argnames, str)) for x in argvalues]
    assert cases, names

    def decorate(test) -> Callable[..., Any]:
        @functools.wraps(test)
        def walked(**fixtures):
            failed = []
            for label, values in cases:
                try:
                    test(**fixtures, **dict(zip(names, values, strict=True)))
                except FAILURES as error:
                    failed.append((label, error))
            if failed:
                lines = [f"{label}: {_first(error)}" for label, error in failed]
                lines.insert(0, f"{len(failed)} of {len(cases)} fail:")
                raise AssertionError("\n".join(lines)) from failed[0][1]

        whole = inspect.signature(test)
        rest = [x for name, x in whole.parameters.items() if name not in names]
        vars(walked)["__signature__"] = whole.replace(parameters=rest)
        return pytest.mark.walk(walked)

    return decorate


def _case(x, *, one):
    """The label and the values of a case, which may be a `pytest.param` with an id."""
    if isinstance(x, type(pytest.param())):
        assert not x.marks, f"a walk is one test, but {x} has marks"
        return x.id or _text(x.values), x.values
    values = (x,) if one else tuple(x)
    return _text(values), values


def _text(values):
    return "-".join(str(getattr(x, "__name__", x)) for x in values)


def _first(error):
    """Its kind and message, on one line, as far as a reader needs it."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}"
