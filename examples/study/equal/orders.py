"""The papers' orders with equal budgets, and which of them are level.

Those of the first study run again that were reversed there, or level with the paper's
gap within the interval, with seeds that did not choose them.
"""

import dataclasses
import math
from collections.abc import Iterator

import numpy as np

from examples.study.bench import orders, results, statistics
from examples.study.bench.ablation_table import LEVEL, REVERSED, SAME
from examples.study.bench.markdown import lines
from examples.study.bench.missing import MissingError
from examples.study.bench.search import Results as FirstResults
from examples.study.equal.config import FRESH
from examples.study.equal.gains import TASK, difference, gain, shown, trial
from examples.study.equal.protocol import Entry, Results
from examples.study.equal.statistics import row

UNDECIDED = "undecided"
TUNED = ":b1=0.9:b2=0.95"  # Of MARS in the first study; betas are tuned here.
# Changes that may explain an order, each beside the method without it.
_ALICE = "alice:last_layer=method:compensation=None"
LOOKS = (
    ("sumo:side=short", "sumo"),
    ("sumo:update_interval=50", "sumo"),
    ("sumo:transport=keep", "sumo"),
    ("sumo:side=short", "galore"),
    ("galore:side=long", "galore"),
    ("galore:update_interval=50", "galore"),
    ("racs:limiter=inf", "racs"),
    ("fira:limiter=inf", "fira"),
    ("alice:leading=0.156", "alice"),
    ("alice:update_interval=50", "alice"),
    (f"{_ALICE}:leading=0.156", f"{_ALICE}"),
    (f"{_ALICE}:leading=0.156:b3=0", f"{_ALICE}:leading=0.156"),
    (f"{_ALICE}:update_interval=50", f"{_ALICE}"),
    (f"{_ALICE}:update_interval=50:b3=0", f"{_ALICE}:update_interval=50"),
    ("aro:sharing=chain:joint=False", "aro:sharing=chain"),
    ("aro:sharing=chain:joint=False", "aro"),
    ("aro:sharing=global:joint=False", "aro:sharing=global"),
    ("galore:last_layer=method", "galore"),
    ("fira:last_layer=method", "fira"),
)
LARGE = 0.01  # A gain on two seeds from which on a change runs with others, too.
HEADINGS = "method", "ranked below", "paper", "first study", "behind by", "same order"


@dataclasses.dataclass(frozen=True)
class Order:
    """A pair of methods that a paper ranks.

    Attributes:
        first: The pair in the first study.
        worse: The method that the paper finds worse.
        better: The one that it finds better.
    """

    first: orders.Order
    worse: str
    better: str

    @property
    def entries(self) -> tuple[Entry, Entry]:
        """The rows of the pair."""
        worse, better = (Entry(TASK, x, seeds=FRESH) for x in (self.worse, self.better))
        return worse, better

    def judged(self, found: Results) -> tuple[str, str]:
        """How far the worse is behind, and the verdict; empty if runs are missing."""
        worse, better = (row(entry, found) for entry in self.entries)
        if worse is None or better is None:
            return "", ""
        gap = self.first.ablation.gap(self.first.worse)
        return judged(worse.losses, better.losses, gap)


def judged(worse: np.ndarray, better: np.ndarray, gap: float) -> tuple[str, str]:
    """What the losses of two methods say of an order.

    Args:
        worse: Losses of the method that the paper finds worse, by seed; infinite for a
            failed run.
        better: Those of the one that it finds better.
        gap: How far the worse is behind there; NaN or infinite where no number is
            printed.

    Returns:
        How far it is behind, with the 95% interval, and whether the order is the
        paper's. If the interval contains zero, the two are level if a 90% interval is
        within the paper's gap on both sides (two one-sided tests at 5%), and undecided
        otherwise.
    """
    a, b = worse.mean(), better.mean()
    if math.isinf(a) or math.isinf(b):
        return "failed", SAME if a > b else REVERSED if a < b else UNDECIDED
    mean, half = statistics.paired(worse - better)
    _, narrow = statistics.paired(worse - better, confidence=0.9)
    is_level = math.isfinite(gap) and abs(mean) + narrow < gap
    verdict = LEVEL if is_level else UNDECIDED
    if abs(mean) > half:
        verdict = SAME if mean > 0 else REVERSED
    return f"{mean:+.4f} ± {half:.4f}", verdict


def every(first: FirstResults) -> Iterator[Order]:
    """The orders that run again, from the runs of the first study."""
    for order in orders.every():
        is_printed = not math.isnan(order.ablation.gap(order.worse))
        is_reversed = order.judged(first)[1] == REVERSED
        if is_reversed or (order.is_open(first) and is_printed):
            names = (x.method.removesuffix(TUNED) for x in (order.worse, order.better))
            yield Order(order, *names)


def entries(found: Results) -> list[Entry]:
    """The rows of all orders and looks, each once, as far as runs decide them."""
    pairs = [order.entries for order in every(results.read())]
    looks = [trial(name) for look in LOOKS for name in look]
    confirmed = [pair for look in LOOKS for pair in _confirmed(look, found)]
    rows = [entry for pair in (*pairs, *confirmed) for entry in pair]
    return list(dict.fromkeys([*rows, *looks]))


def _confirmed(look, found):
    """Pairs of rows, on two tasks, for a change with a large gain."""
    try:
        is_large = gain(*look, found) < -LARGE
    except MissingError:
        return []
    on_books = tuple(Entry(TASK, name, seeds=FRESH) for name in look)
    on_digits = tuple(Entry("digits", name) for name in look)
    return [on_books, on_digits] if is_large else []


def report(found: Results) -> str:
    """A row for every order; empty cells are still to run."""
    first = results.read()
    cells = []
    for order in every(first):
        names = f"`{order.worse}`", f"`{order.better}`"
        paper = order.first.ablation.gap_in_words(order.first.worse)
        then = order.first.judged(first)[1]
        cells.append([*names, paper, then, *order.judged(found)])
    return lines(HEADINGS, cells)


def looks(found: Results) -> str:
    """What each change does to the validation loss, and to test losses if it gains.

    Empty cells are still to run.
    """
    cells = []
    for look in LOOKS:
        by = shown(*look, found)
        tested = [difference(*pair, found) for pair in _confirmed(look, found)]
        tested = tested or [by and "-"] * 2
        cells.append([*(f"`{name}`" for name in look), by, *tested])
    tests = "books, ten seeds", "digits, five seeds"
    return lines(("method", "without the change", "validation", *tests), cells)
