"""The search for a better method: additions to the four that were ahead.

1. Every addition of `chains` to every method that it fits, on *books*: the method's
   settings, half, once and twice its rate (and beyond), the seeds `config.TUNING`.
2. The three best additions of each method, of those that gain: all pairs, and all three
   together.
3. The five with the smallest validation loss, on *books* and *digits*, with the seeds
   and the test sets of the comparison, which have chosen nothing.
"""

import itertools

import numpy as np

from examples.study.bench import statistics
from examples.study.bench.markdown import lines
from examples.study.equal.chains import ADDITIONS, BASES, fit, name_of
from examples.study.equal.protocol import Entry, MissingError, Results, validated
from examples.study.equal.statistics import row

TASK, TASKS = "books", ("books", "digits")
BEST, CHOSEN = 3, 5
CHAMPION = "mousse"  # The best of the comparison on all of its tasks.


def first_round() -> dict[str, tuple[str, ...]]:
    """Names of the methods with one addition, and their parts."""
    return {
        name_of(base, (name,)): (base, name)
        for base in BASES
        for name, one in ADDITIONS.items()
        if base in one.bases
    }


def second_round(found: Results) -> dict[str, tuple[str, ...]]:
    """Methods with two or three of their best additions.

    Raises:
        MissingError: If a run of the first round is missing.
    """
    chosen = {}
    for base in BASES:
        gains = {
            name: gain(name_of(base, (name,)), found)
            for parent, name in first_round().values()
            if parent == base
        }
        best = sorted((n for n in gains if gains[n] < 0), key=gains.__getitem__)[:BEST]
        pairs = itertools.combinations(best, 2)
        triples = itertools.combinations(best, 3)
        for names in (*pairs, *triples):
            if fit(names):
                chosen[name_of(base, names)] = (base, *names)
    return chosen


def finalists(found: Results) -> list[str]:
    """The methods of both rounds with the smallest validation loss.

    Raises:
        MissingError: If a run of a round is missing.
    """
    every = [*first_round(), *second_round(found)]
    return sorted(every, key=lambda name: validated(trial(name), found))[:CHOSEN]


def trial(method: str) -> Entry:
    """A method whose validation loss counts."""
    return Entry(TASK, method, has_row=False)


def gain(name: str, found: Results) -> float:
    """Validation loss of a method minus that of the one without additions."""
    base = name.split("+")[0]
    return validated(trial(name), found) - validated(trial(base), found)


def entries(found: Results) -> list[Entry]:
    """The rows of the search, as far as its runs decide them."""
    rows = [trial(name) for name in (*BASES, *first_round())]
    try:
        rows += [trial(name) for name in second_round(found)]
        names = dict.fromkeys([CHAMPION, *_with_bases(finalists(found))])
        rows += [Entry(task, name) for task in TASKS for name in names]
    except MissingError:
        pass
    return rows


def _with_bases(names):
    for name in names:
        yield from (name.split("+")[0], name)


def report(found: Results) -> str:
    """Gains of the first round, the second one, and the finalists; empty until run."""
    parts = [_gains(found)]
    try:
        second = sorted(second_round(found), key=lambda n: gain(n, found))
        cells = [[f"`{n}`", f"{gain(n, found):+.4f}"] for n in second]
        parts.append(lines(("additions together", "gain"), cells))
        parts.append(_finals(finalists(found), found))
    except MissingError:
        pass
    return "\n\n".join(parts)


def _gains(found):
    def cell(base, name):
        try:
            return f"{gain(name_of(base, (name,)), found):+.4f}"
        except MissingError:
            return ""

    cells = [
        [name, *(cell(b, name) if b in one.bases else "-" for b in BASES)]
        for name, one in ADDITIONS.items()
    ]
    return lines(("addition", *(f"`{base}`" for base in BASES)), cells)


def _finals(names, found):
    headings = ["method"]
    for task in TASKS:
        headings += [f"{task}: without additions", f"against `{CHAMPION}`"]
    cells = []
    for name in names:
        against = name.split("+")[0], CHAMPION
        shown = [_difference(name, x, task, found) for task in TASKS for x in against]
        cells.append([f"`{name}`", *shown])
    return lines(headings, cells)


def _difference(name, other, task, found):
    """Simultaneous 95% intervals of all finalists (Bonferroni)."""
    rows = [row(Entry(task, method), found) for method in (name, other)]
    if None in rows:
        return ""
    losses = [np.array(one.losses) for one in rows]
    if not np.isfinite(losses).all():
        return "failed"
    mean, half = statistics.paired(losses[0] - losses[1], CHOSEN)
    return f"{mean:+.4f} ± {half:.4f}"
