"""The runs of a task, and the rules that they decide between.

1. AdamW tries five rates, a factor of two apart, on the two seeds `TUNING`, and others
   while the best lies at an end. The mean loss on the validation set chooses.
2. MuonEq runs at once, twice and four times that rate, with one rate for all leaves or
   with two: the other leaves then keep the rate of AdamW. These runs have the seeds
   `TUNING`, for the rules that search, and the seeds of step 3.
3. AdamW's best rate and all of step 2 are measured on the test set: on the tasks
   `CHOOSING` with ten seeds, on `CONFIRMING` with the last five.
4. A rule is scored on a task by the mean over seeds of log(loss / loss of AdamW). The
   rule with the smallest mean score on `CHOOSING`, with the first five seeds, is
   chosen. The last five seeds, on all six tasks, confirm it or do not.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from examples.study.bench.config import Result
from examples.study.bench.missing import next_run, result

CHOOSING = "gru", "mixer", "convnet"
CONFIRMING = "unet", "graph", "tabular"
TUNING = 1000, 1001
FIRST, LAST = (0, 1, 2, 3, 4), (5, 6, 7, 8, 9)
RATES = 1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2
LIMIT = 9  # Rates that AdamW tries at most.
REFERENCE = "adamw"
ONE, TWO = ("1", "one:2", "one:4"), ("1", "two:2", "two:4")
FORMS = tuple(dict.fromkeys((REFERENCE, *ONE, *TWO)))
# Each rule takes the best of these forms by the validation set.
RULES = {
    "the rate of AdamW": ("1",),
    "twice that rate": ("one:2",),
    "four times that rate": ("one:4",),
    "twice, other leaves at once": ("two:2",),
    "four times, other leaves at once": ("two:4",),
    "the best of 1, 2 and 4 times": ONE,
    "the best of 1, 2 and 4 times, other leaves at once": TWO,
}


@dataclasses.dataclass(frozen=True)
class Config:
    """Everything that decides the outcome of a run.

    Attributes:
        task: A name of `tasks.TASKS`.
        form: ``adamw``; ``1`` for MuonEq at AdamW's rate; ``one:2`` for twice that
            rate; ``two:2`` for twice that rate with the other leaves at AdamW's.
        rate: Peak of AdamW's rate.
        seed: Of the weights and of the batches.
    """

    task: str
    form: str
    rate: float
    seed: int


Results = Mapping[Config, Result]


def seeds_of(task: str) -> tuple[int, ...]:
    """The seeds that are measured on the test set."""
    return FIRST + LAST if task in CHOOSING else LAST


def due(task: str, results: Results) -> Config | None:
    """The next run of a task; None if it has had all of them."""
    return next_run(_whole, task, results)


def _whole(task, results):
    """Reads all runs of a task in order, form by form, which share a program."""
    best = adamw(task, results)
    for form in FORMS:
        if form != REFERENCE:
            validated(task, form, best, results)
        losses(task, form, best, seeds_of(task), results)


def left(tasks: Sequence[str], results: Results) -> int:
    """Runs that tasks still lack, as far as is known."""

    def missing(task):
        row = len(FORMS) * len(seeds_of(task))
        budget = (len(RATES) + len(FORMS) - 1) * len(TUNING) + row
        return max(
            budget - sum(c.task == task for c in results), bool(due(task, results))
        )

    return sum(map(missing, tasks))


def adamw(task: str, results: Results) -> float:
    """AdamW's best rate.

    Raises:
        MissingError: If a run is missing; so do all functions here.
    """
    rates = [*RATES]
    while True:
        tried = {rate: validated(task, REFERENCE, rate, results) for rate in rates}
        best = min(rates, key=tried.__getitem__)
        if best == rates[0] and len(rates) < LIMIT:
            rates.insert(0, best / 2)
        elif best == rates[-1] and len(rates) < LIMIT:
            rates.append(best * 2)
        else:
            return best


def validated(task: str, form: str, rate: float, results: Results) -> float:
    """Mean loss of the seeds `TUNING` on the validation set."""
    return float(np.mean(losses(task, form, rate, TUNING, results)))


def losses(
    task: str, form: str, rate: float, seeds: Sequence[int], results: Results
) -> np.ndarray:
    """Loss by seed; infinite for a failed run."""
    runs = [result(Config(task, form, rate, seed), results) for seed in seeds]
    return np.array([math.inf if run.loss is None else run.loss for run in runs])


def form_of(rule: str, task: str, results: Results) -> str:
    """The form that a rule takes on a task."""
    forms = RULES[rule]
    if len(forms) == 1:
        return forms[0]
    rate = adamw(task, results)
    return min(forms, key=lambda form: validated(task, form, rate, results))


def scores(rule: str, task: str, seeds: Sequence[int], results: Results) -> np.ndarray:
    """log(loss / loss of AdamW), seed by seed."""
    rate = adamw(task, results)
    form = form_of(rule, task, results)
    ours = losses(task, form, rate, seeds, results)
    return np.log(ours / losses(task, REFERENCE, rate, seeds, results))


def score(rule: str, tasks: Sequence[str], seeds, results: Results) -> float:
    """Mean over tasks of the mean over seeds."""
    return float(np.mean([scores(rule, task, seeds, results).mean() for task in tasks]))


def chosen(results: Results) -> str:
    """The rule that loses least on the tasks and seeds that choose."""
    return min(RULES, key=lambda rule: score(rule, CHOOSING, FIRST, results))
