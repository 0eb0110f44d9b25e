"""Validation losses beside each other: what a change of a method does."""

import math

from examples.study.equal.protocol import Entry, MissingError, Results, validated

TASK = "books"


def trial(method: str) -> Entry:
    """A method whose validation loss counts."""
    return Entry(TASK, method, seeds=())


def gain(method: str, other: str, found: Results) -> float:
    """Validation loss of a method minus that of another.

    Raises:
        MissingError: If a run is missing.
    """
    return validated(trial(method), found) - validated(trial(other), found)


def shown(method: str, other: str, found: Results) -> str:
    """`gain` as text; empty if runs are missing."""
    try:
        by = gain(method, other, found)
    except MissingError:
        return ""
    return f"{by:+.4f}" if math.isfinite(by) else "failed"
