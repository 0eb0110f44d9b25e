"""The search for a better chain: all of them briefly, then fewer for longer.

Its tasks have validation texts of their own, cut from the training texts, so that the
chains are chosen on no data and no seed that confirms them.
"""

import math
from collections.abc import Sequence

from examples.study.bench.chains import KNOWN, sensible
from examples.study.bench.search import (
    TRIALS,
    Entry,
    Results,
    is_finished,
    rate_at,
    tuning,
)
from examples.study.bench.tasks import TASKS

TASK_1, TASK_2 = "shakespeare/search", "books/search"
# Of each round: chains, steps of `books/search`, and learning rates. Those of the first
# are four and eight times the task's: short runs of `books` have the best ones there.
ROUNDS = ((258, 100, (2, 3)), (48, 200, (0, 1, -1)))
LAST, CHOSEN = 12, 5  # Chains of the last round, and of its result.


def entries(results: Results) -> list[Entry]:
    """The chains of the first round that has missing runs, or of the last one."""
    found = first_round()
    for count, steps, trials in ROUNDS[1:]:
        if not all(is_finished(e, results) for e in found):
            return found
        found = [
            _entry(e.method, steps, trials, best(e, results)[1])
            for e in ordered(found, results)[:count]
        ]
    if not all(is_finished(e, results) for e in found):
        return found
    names = [e.method for e in ordered(found, results)[:LAST]]
    return [e for task in (TASK_1, TASK_2) for e in _last(task, names)]


def first_round() -> list[Entry]:
    """All chains."""
    _, steps, trials = ROUNDS[0]
    return [_entry(name, steps, trials, TASKS[TASK_2].rate) for name in sensible()]


def _last(task, names):
    """Full runs, at as many learning rates as the methods of the study get."""
    t = TASKS[task]
    return [
        Entry(task, name, "matched", t.rate, t.steps, t.batch, TRIALS, seeds=())
        for name in names
    ]


def _entry(name, steps, trials, rate):
    """A chain of the rounds before the last one."""
    return Entry(
        *(TASK_2, name, "matched", rate, steps, TASKS[TASK_2].batch),
        trials=trials,
        is_extended=False,
        seeds=(),
    )


def best(entry: Entry, results: Results) -> tuple[float, float]:
    """The smallest loss of an entry's trials, and its learning rate."""
    tried = tuning(entry, results)
    power = min(tried, key=lambda power: (tried[power], power))
    return tried[power], rate_at(entry, power)


def ordered(found: Sequence[Entry], results: Results) -> list[Entry]:
    """Entries by the loss of their best trials."""
    return sorted(found, key=lambda e: best(e, results)[0])


def last_round(results: Results) -> dict[str, dict[str, float]] | None:
    """The losses of the last round by chain and task; None before its end.

    Chains are in the order of the sum of their places in both tasks.
    """
    found = entries(results)
    is_last = {e.task for e in found} == {TASK_1, TASK_2}
    if not is_last or not all(is_finished(e, results) for e in found):
        return None
    losses: dict[str, dict[str, float]] = {}
    for e in found:
        losses.setdefault(e.method, {})[e.task] = best(e, results)[0]
    places = dict.fromkeys(losses, 0.0)
    for task in (TASK_1, TASK_2):
        order = sorted(losses, key=lambda name: losses[name][task])
        for place, name in enumerate(order):
            worst = math.isinf(losses[name][task])
            places[name] += math.inf if worst else place
    return {name: losses[name] for name in sorted(losses, key=places.__getitem__)}


def finalists(results: Results) -> list[str] | None:
    """The new chains that the search has chosen; None before its end."""
    found = last_round(results)
    return None if found is None else [x for x in found if x not in KNOWN][:CHOSEN]
