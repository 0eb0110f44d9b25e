"""The search for a better method: additions to four that won the first study.

1. Every addition of `chains` to every method that it fits, on *books*: the method's
   settings, half, once and twice its rate (and beyond), the seeds `config.TUNING`.
2. The three best additions of each method that gain and fit together: all pairs, and
   all three.
3. The five with the smallest validation loss, on *books* and *digits*, with the seeds
   and the test sets of the comparison. These chose none of the five.
"""

import itertools

from examples.study.bench.markdown import lines
from examples.study.bench.missing import MissingError
from examples.study.equal.chains import ADDITIONS, BASES, fit, name_of
from examples.study.equal.gains import TASK, difference, gain, shown, trial
from examples.study.equal.protocol import Entry, Results, validated

TASKS = TASK, "digits"
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
        best = _best_additions(base, found)
        pairs = itertools.combinations(best, 2)
        triples = itertools.combinations(best, BEST)
        for names in (*pairs, *triples):
            chosen[name_of(base, names)] = (base, *names)
    return chosen


def _best_additions(base, found):
    """Those that gain, the best ones first, as far as they fit together."""
    names = [name for parent, name in first_round().values() if parent == base]
    gains = {name: _gain(name_of(base, (name,)), found) for name in names}
    best: list[str] = []
    for name in sorted(gains, key=gains.__getitem__):
        if gains[name] < 0 and len(best) < BEST and fit([*best, name]):
            best.append(name)
    return best


def _gain(name, found):
    """Validation loss of a method minus that of the one without additions."""
    return gain(name, name.split("+")[0], found)


def finalists(found: Results) -> list[str]:
    """The methods of both rounds with the smallest validation loss.

    Raises:
        MissingError: If a run of a round is missing.
    """
    every = [*first_round(), *second_round(found)]
    return sorted(every, key=lambda name: validated(trial(name), found))[:CHOSEN]


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
        second = sorted(second_round(found), key=lambda n: _gain(n, found))
        parts.append(_together([*BASES, *second], found))
        parts.append(_finals(finalists(found), found))
    except MissingError:
        pass
    return "\n\n".join(parts)


def _gains(found):
    def cell(base, name):
        return shown(name_of(base, (name,)), base, found)

    cells = [
        [name, *(cell(b, name) if b in one.bases else "-" for b in BASES)]
        for name, one in ADDITIONS.items()
    ]
    return lines(("addition", *(f"`{base}`" for base in BASES)), cells)


def _together(names, found):
    """Validation losses of methods, and what their additions gain."""
    cells = [
        [
            f"`{name}`",
            f"{validated(trial(name), found):.4f}",
            "-" if name in BASES else shown(name, name.split("+")[0], found),
        ]
        for name in names
    ]
    return lines(("additions together", "validation loss", "gain"), cells)


def _finals(names, found):
    """Differences of the finalists, with intervals that hold together."""
    headings = ["method"]
    for task in TASKS:
        headings += [f"{task}: without additions", f"against `{CHAMPION}`"]
    cells = []
    for name in names:
        pairs = [
            (Entry(task, name), Entry(task, other))
            for task in TASKS
            for other in (name.split("+")[0], CHAMPION)
        ]
        shown = [difference(*pair, found, CHOSEN) for pair in pairs]
        cells.append([f"`{name}`", *shown])
    return lines(headings, cells)
