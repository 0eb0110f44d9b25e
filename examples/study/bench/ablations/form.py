"""How an ablation of a paper is written down."""

import dataclasses
import math

from examples.study.bench.comparison import entry
from examples.study.bench.search import FEW_TRIALS, TRIALS, Entry
from examples.study.bench.tasks import TASKS

TASK = "books"
RATE = 8e-3  # The best of most methods there.


@dataclasses.dataclass(frozen=True)
class Variant:
    """A method of an ablation.

    Attributes:
        method: A method, with options.
        figure: What the paper prints for it, if anything; with a plus sign, how far it
            is behind the better one, in the loss.
        better: The method that the paper finds better; None for none.
        trials: Learning rates that are tried, as powers of two times `RATE`.
        setting: As in `Config`. In its paper's, a method is searched as in the study
            of all methods.
    """

    method: str
    figure: str = ""
    better: str | None = None
    trials: tuple[int, ...] = FEW_TRIALS
    setting: str = "matched"

    @property
    def entry(self) -> Entry:
        if self.setting == "own":
            return entry(TASK, self.method, "own")
        t = TASKS[TASK]
        return Entry(
            TASK, self.method, "matched", RATE, t.steps, t.batch, trials=self.trials
        )


@dataclasses.dataclass(frozen=True)
class Ablation:
    """One table or figure of a paper, or a comparison that explains one.

    Attributes:
        title: What is varied.
        source: Table or figure, with its model and measure; empty if no paper has it.
        variants: The methods; the paper's best one first.
        shows_rates: Whether its table has the loss at every learning rate.
        finding: Why the paper's order does not appear, if it does not.
        has_losses: Whether its figures are losses; otherwise they are perplexities.
    """

    title: str
    source: str
    variants: tuple[Variant, ...]
    shows_rates: bool = False
    finding: str = ""
    has_losses: bool = False

    def gap(self, variant: Variant) -> float:
        """How far the paper finds a variant behind the better one, in the loss.

        Infinite for one that fails there or is "much worse"; NaN where nothing is
        printed.
        """
        figures = {v.method: v.figure for v in self.variants}
        ours, theirs = variant.figure, figures.get(variant.better or "", "")
        if ours.startswith("+"):
            return float(ours)
        if ours and not ours[0].isdigit():
            return math.inf
        if not (ours and theirs[:1].isdigit()):
            return math.nan
        a, b = float(ours), float(theirs)
        return a - b if self.has_losses else math.log(a / b)

    def gap_in_words(self, variant: Variant) -> str:
        """The gap as text; empty where nothing is printed."""
        gap = self.gap(variant)
        if math.isinf(gap):
            return variant.figure
        return "" if math.isnan(gap) else f"{gap:+.4f}"


def ranking(*figures: tuple[str, str]) -> tuple[Variant, ...]:
    """Methods from best to worst, each behind the last one with a better figure.

    What follows methods of one figure is compared with the last of these.
    """
    found: list[Variant] = []
    for method, figure in figures:
        before = found[-1] if found else Variant("")
        is_level = figure and figure == before.figure
        better = before.better if is_level else before.method or None
        found.append(Variant(method, figure, better))
    return tuple(found)


def around(best: str, *others: str) -> tuple[Variant, ...]:
    """A method that a figure shows as the best, and the others."""
    return Variant(best), *(Variant(other, better=best) for other in others)


def pairs(*methods: tuple[str, str]) -> tuple[Variant, ...]:
    """Pairs of which the paper finds the first better."""
    variants = [
        x
        for best, other in methods
        for x in (Variant(best), Variant(other, better=best))
    ]
    return tuple(dict.fromkeys(variants))


def mapped(variants: tuple[Variant, ...]) -> tuple[Variant, ...]:
    """Variants whose losses are shown at every learning rate."""
    return tuple(dataclasses.replace(v, trials=TRIALS) for v in variants)
