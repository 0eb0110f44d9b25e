"""Ablations whose order is the reverse of the paper's, run for four times as long.

The papers train for far longer than this study, so that an order that is reversed here
may come back with more steps.
"""

import dataclasses

from examples.bench.ablation_table import compared
from examples.bench.ablations import ABLATIONS
from examples.bench.ablations.form import TASK, Variant
from examples.bench.comparison import moved
from examples.bench.markdown import lines
from examples.bench.search import Entry, Results
from examples.bench.statistics import row

LONGER = 4
HEADINGS = (
    "method",
    "ranked below",
    "behind by",
    "behind by after 1600 steps",
    "same order then",
)


@dataclasses.dataclass(frozen=True)
class Reversal:
    """A method that is ahead here, beyond the interval, and behind in its paper.

    Attributes:
        method: The method that the paper finds worse.
        better: The one that it finds better.
        by: How far the first is behind the second here, as text.
    """

    method: Variant
    better: Variant
    by: str

    def longer(self, results: Results) -> tuple[Entry, Entry]:
        """Both of them at four times the steps."""
        ours, theirs = (
            moved(variant.entry, results, TASK, steps=LONGER)
            for variant in (self.method, self.better)
        )
        return ours, theirs


def reversals(results: Results) -> list[Reversal]:
    """The pairs of all ablations, of those whose runs are finished."""
    found = []
    for ablation in ABLATIONS:
        variants = {v.method: v for v in ablation.variants}
        for variant in ablation.variants:
            if not ablation.source or not variant.better:
                continue
            better = variants[variant.better]
            by, verdict = _judged(variant.entry, better.entry, results)
            if verdict == "no":
                found.append(Reversal(variant, better, by))
    return found


def _judged(ours: Entry, theirs: Entry, results: Results) -> tuple[str, str]:
    """How far the first is behind, and the verdict; empty while runs are missing."""
    a, b = row(ours, results), row(theirs, results)
    return compared(a, b) if a and b else ("", "")


def entries(results: Results) -> list[Entry]:
    """The methods of all reversals, each once."""
    pairs = [reversal.longer(results) for reversal in reversals(results)]
    return list(dict.fromkeys(e for pair in pairs for e in pair))


def report(results: Results) -> str:
    """A row for every reversal; empty cells are still to run."""
    cells = []
    for reversal in reversals(results):
        judged = _judged(*reversal.longer(results), results)
        names = f"`{reversal.method.method}`", f"`{reversal.better.method}`"
        cells.append([*names, reversal.by, *judged])
    return lines(HEADINGS, cells) if cells else "No order is reversed so far."
