"""Orders of the papers that do not appear here, run for four times as long.

The papers train for far longer than this study, so that an order may come back with
more steps. Those run again that are reversed here, and those that are level although
the paper's gap is beyond the interval.
"""

import collections
import dataclasses
import math
from collections.abc import Iterator

from examples.study.bench.ablation_table import LEVEL, REVERSED, SAME, compared
from examples.study.bench.ablations import ABLATIONS
from examples.study.bench.ablations.form import TASK, Ablation, Variant
from examples.study.bench.comparison import moved
from examples.study.bench.markdown import lines
from examples.study.bench.search import Entry, Results
from examples.study.bench.statistics import difference, row
from examples.study.bench.tasks import TASKS

LONGER = 4
HEADINGS = (
    "method",
    "ranked below",
    "paper",
    "behind by",
    f"behind by after {LONGER * TASKS[TASK].steps} steps",
    "same order then",
)


@dataclasses.dataclass(frozen=True)
class Order:
    """A pair of methods of an ablation, and how it comes out here.

    Attributes:
        ablation: Where it belongs.
        worse: The method that the paper finds worse.
        better: The one that it finds better.
    """

    ablation: Ablation
    worse: Variant
    better: Variant

    def judged(self, results: Results) -> tuple[str, str]:
        """How far the worse is behind, and the verdict; empty if runs are missing."""
        return _judged(self.worse.entry, self.better.entry, results)

    def is_open(self, results: Results) -> bool:
        """Whether it is level, and the paper's gap, if printed, is in the interval."""
        if self.judged(results)[1] != LEVEL:
            return False
        worse, better = row(self.worse.entry, results), row(self.better.entry, results)
        return not self.ablation.gap(self.worse) > sum(difference(worse, better))

    def runs_again(self, verdict: str, results: Results) -> bool:
        """Whether it has this verdict, and the paper's gap is beyond the interval."""
        if self.judged(results)[1] != verdict:
            return False
        worse, better = row(self.worse.entry, results), row(self.better.entry, results)
        is_beyond = self.ablation.gap(self.worse) > sum(difference(worse, better))
        return verdict == REVERSED or is_beyond

    def longer(self, results: Results) -> tuple[Entry, Entry]:
        """Both methods at four times the steps."""
        worse, better = (
            moved(variant.entry, results, TASK, steps=LONGER)
            for variant in (self.worse, self.better)
        )
        return worse, better


def every() -> Iterator[Order]:
    """The pairs of all ablations, each once."""
    seen = set()
    for ablation in ABLATIONS:
        variants = {v.method: v for v in ablation.variants}
        for variant in ablation.variants if ablation.source else ():
            pair = variant.method, variant.better
            if variant.better and pair not in seen:
                seen.add(pair)
                yield Order(ablation, variant, variants[variant.better])


def _judged(worse: Entry, better: Entry, results: Results) -> tuple[str, str]:
    a, b = row(worse, results), row(better, results)
    return compared(a, b) if a and b else ("", "")


def repeated(verdict: str, results: Results) -> list[Order]:
    """The pairs with this verdict that run again, of those whose runs are finished."""
    return [order for order in every() if order.runs_again(verdict, results)]


def entries(verdict: str, results: Results) -> list[Entry]:
    """The methods of all pairs that run again, each once."""
    pairs = [order.longer(results) for order in repeated(verdict, results)]
    return list(dict.fromkeys(e for pair in pairs for e in pair))


def report(verdict: str, results: Results) -> str:
    """A row for every pair that runs again; empty cells are still to run."""
    cells = []
    for order in repeated(verdict, results):
        by, _ = order.judged(results)
        later = _judged(*order.longer(results), results)
        names = f"`{order.worse.method}`", f"`{order.better.method}`"
        cells.append([*names, order.ablation.gap_in_words(order.worse), by, *later])
    return lines(HEADINGS, cells) if cells else "There is none so far."


def counts(results: Results) -> str:
    """How many orders of the papers appear here."""
    orders = list(every())
    found = collections.Counter(order.judged(results)[1] for order in orders)
    undecided = [
        order.ablation.gap(order.worse) for order in orders if order.is_open(results)
    ]
    unprinted = sum(map(math.isnan, undecided))
    return (
        f"Of {found.total() - found['']} orders, {found[SAME]} are those of the "
        f"papers, {found[LEVEL]} are level and {found[REVERSED]} are reversed. Of the "
        f"level ones, {len(undecided) - unprinted} have the paper's gap within their "
        f"interval and {unprinted} have no printed gap: these are undecided."
    )
