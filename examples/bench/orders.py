"""Orders of the papers that do not appear here, run for four times as long.

The papers train for far longer than this study, so that an order may come back with
more steps. Those run again that are reversed here, and those that are level although
the paper's gap is beyond the interval of this study, widened so that the intervals of
all orders hold together (Bonferroni).
"""

import collections
import dataclasses
from collections.abc import Iterator

from examples.bench.ablation_table import compared
from examples.bench.ablations import ABLATIONS
from examples.bench.ablations.form import TASK, Ablation, Variant
from examples.bench.comparison import moved
from examples.bench.markdown import lines
from examples.bench.search import Entry, Results
from examples.bench.statistics import difference, row

LONGER = 4
REVERSED, LEVEL = "no", "level"  # Verdicts.
HEADINGS = (
    "method",
    "ranked below",
    "paper",
    "behind by",
    "behind by after 1600 steps",
    "same order then",
)


@dataclasses.dataclass(frozen=True)
class Order:
    """A pair of methods of an ablation, and how it comes out here.

    Attributes:
        ablation: Where it belongs.
        method: The method that the paper finds worse.
        better: The one that it finds better.
    """

    ablation: Ablation
    method: Variant
    better: Variant

    def judged(self, results: Results) -> tuple[str, str]:
        """How far the first is behind, and the verdict; empty if runs are missing."""
        return _judged(self.method.entry, self.better.entry, results)

    def is_missing(self, results: Results) -> bool:
        """Whether the paper's gap is beyond the widened interval."""
        ours, theirs = row(self.method.entry, results), row(self.better.entry, results)
        if not (ours and theirs):
            return False
        count = len(list(all_orders()))
        return self.ablation.gap(self.method) > sum(difference(ours, theirs, count))

    def longer(self, results: Results) -> tuple[Entry, Entry]:
        """Both methods at four times the steps."""
        ours, theirs = (
            moved(variant.entry, results, TASK, steps=LONGER)
            for variant in (self.method, self.better)
        )
        return ours, theirs


def all_orders() -> Iterator[Order]:
    """The pairs of all ablations, each once."""
    seen = set()
    for ablation in ABLATIONS:
        variants = {v.method: v for v in ablation.variants}
        for variant in ablation.variants if ablation.source else ():
            pair = variant.method, variant.better
            if variant.better and pair not in seen:
                seen.add(pair)
                yield Order(ablation, variant, variants[variant.better])


def missed(verdict: str, results: Results) -> list[Order]:
    """The pairs with this verdict that run again, of those whose runs are finished."""
    found = [x for x in all_orders() if x.judged(results)[1] == verdict]
    return [x for x in found if verdict == REVERSED or x.is_missing(results)]


def _judged(ours: Entry, theirs: Entry, results: Results) -> tuple[str, str]:
    a, b = row(ours, results), row(theirs, results)
    return compared(a, b) if a and b else ("", "")


def entries(verdict: str, results: Results) -> list[Entry]:
    """The methods of all pairs that run again, each once."""
    pairs = [order.longer(results) for order in missed(verdict, results)]
    return list(dict.fromkeys(e for pair in pairs for e in pair))


def report(verdict: str, results: Results) -> str:
    """A row for every pair that runs again; empty cells are still to run."""
    cells = []
    for order in missed(verdict, results):
        by, _ = order.judged(results)
        later = _judged(*order.longer(results), results)
        names = f"`{order.method.method}`", f"`{order.better.method}`"
        cells.append([*names, order.ablation.gap_in_words(order.method), by, *later])
    return lines(HEADINGS, cells) if cells else "There is none so far."


def counts(results: Results) -> str:
    """How many orders of the papers appear here."""
    found = collections.Counter(x.judged(results)[1] for x in all_orders())
    return (
        f"Of {found.total() - found['']} orders, {found['yes']} are those of the "
        f"papers, {found[LEVEL]} are level and {found[REVERSED]} are reversed."
    )
