"""Losses beside each other: what a change of a method does."""

import math

import numpy as np

from examples.study.bench import statistics
from examples.study.bench.missing import MissingError
from examples.study.equal.protocol import Entry, Results, validated
from examples.study.equal.statistics import row

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


def difference(ours: Entry, theirs: Entry, found: Results, together: int = 1) -> str:
    """Mean difference of test losses, seed by seed, with its 95% interval.

    Args:
        ours: A row.
        theirs: Another one, with the same seeds.
        found: All runs.
        together: How many such intervals hold at the same time (Bonferroni).

    Returns:
        The text; empty if runs are missing.
    """
    rows = [row(entry, found) for entry in (ours, theirs)]
    if None in rows:
        return ""
    losses = [one.losses for one in rows]
    if not np.isfinite(losses).all():
        return "failed"
    mean, half = statistics.paired(losses[0] - losses[1], together)
    return f"{mean:+.4f} ± {half:.4f}"
