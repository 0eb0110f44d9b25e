"""The runs of the study of rewards.

1. AdamW comes first, with the largest budget. Each of its two decay rates of the second
   moment tries seven learning rates, a factor of two apart.
2. Every other method tries 1/2, 1, 2, 4 and 8 times the best rate of AdamW for the
   matrices. The other leaves keep AdamW with that rate and its decay rate. Muon does
   so with each of two decay rates of its momentum.
3. While the best rate lies at an end, the next one beyond it is tried, up to `LIMIT`.
4. The best rate runs with ten other seeds. Rows are compared with the better AdamW of
   step 1.

A run is scored by the mean of the returns that it measures in its second half. The mean
score over the seeds `TUNING` chooses a rate. A run that failed is worse than any other.
All methods warm up over 5% of the updates and then fall to a tenth of the peak along a
cosine; gradients are clipped at norm 1, and nothing decays.

There are about 165 runs per task, 330 in all. They were expected to take 80 minutes of
one slow core: 25 seconds for a run of the sums, and 3 for one of the pendulum.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from examples.study.bench.missing import next_run, result
from examples.study.reinforce.methods import ADAMW, METHODS

TASKS = "pendulum", "sums"
TUNING = 1000, 1001, 1002
SEEDS = tuple(range(10))
MIDDLES = {"sums": 2.5e-4, "pendulum": 4e-3}  # Of the rates of AdamW.
POWERS, FACTORS = (-3, -2, -1, 0, 1, 2, 3), (0.5, 1.0, 2.0, 4.0, 8.0)
LIMIT = 10


@dataclasses.dataclass(frozen=True)
class Config:
    """Everything that decides the outcome of a run.

    Attributes:
        task: Of `TASKS`.
        method: Of `methods.METHODS`.
        rate: Peak of its rate.
        other: Of `methods.ADAMW`, for leaves that are not matrices; None under AdamW.
        other_rate: Peak of the rate of these.
        seed: Of questions and answers, or of weights and episodes.
    """

    task: str
    method: str
    rate: float
    other: str | None
    other_rate: float | None
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a run measured.

    Attributes:
        score: Mean return in the second half; None if the run failed.
        curve: Steps, and at each the return, the entropy and the divergence.
        seconds: Seconds of the processor, with the compilation if there was one.
    """

    score: float | None
    curve: list[list[float]]
    seconds: float


Results = Mapping[Config, Outcome]


@dataclasses.dataclass(frozen=True)
class Entry:
    """A row: a method on a task."""

    task: str
    method: str


def entries() -> list[Entry]:
    """All rows; those of AdamW come first."""
    rows = [Entry(task, method) for task in TASKS for method in METHODS]
    return sorted(rows, key=lambda row: row.method not in ADAMW)


def due(entry: Entry, results: Results) -> Config | None:
    """The next run of an entry; None if it has had all of them."""
    return next_run(confirmed, entry, results)


def left(rows: Sequence[Entry], results: Results) -> int:
    """Runs that rows still lack, as far as is known."""

    def missing(row):
        if not due(row, results):
            return 0
        rates = POWERS if row.method in ADAMW else FACTORS
        budget = len(rates) * len(TUNING) + len(SEEDS)
        had = sum((c.task, c.method) == (row.task, row.method) for c in results)
        return max(budget - had, 1)

    return sum(map(missing, rows))


def reference(task: str, results: Results) -> Config:
    """The better AdamW of a task, with a seed of no meaning.

    Raises:
        MissingError: If a run is missing; so do all functions here.
    """
    both = [tuned(Entry(task, method), results) for method in ADAMW]
    return max(both, key=lambda config: tried_score(config, results))


def tuned(entry: Entry, results: Results) -> Config:
    """The best rate of a method, with a seed of no meaning."""
    if entry.method in ADAMW:
        middle = MIDDLES[entry.task]
        rates = [_rounded(middle * 2.0**power) for power in POWERS]
        form = Config(entry.task, entry.method, middle, None, None)
    else:
        best = reference(entry.task, results)
        rates = [_rounded(best.rate * factor) for factor in FACTORS]
        form = Config(entry.task, entry.method, best.rate, best.method, best.rate)
    score = lambda rate: tried_score(dataclasses.replace(form, rate=rate), results)
    while True:
        scores = [score(rate) for rate in rates]
        best = rates[int(np.argmax(scores))]
        if best == rates[0] and len(rates) < LIMIT:
            rates.insert(0, _rounded(best / 2))
        elif best == rates[-1] and len(rates) < LIMIT:
            rates.append(_rounded(best * 2))
        else:
            return dataclasses.replace(form, rate=best)


def tried_score(config: Config, results: Results) -> float:
    """Mean score of the seeds `TUNING`; minus infinity if a run failed."""
    configs = [dataclasses.replace(config, seed=seed) for seed in TUNING]
    scores = [result(one, results).score for one in configs]
    return -math.inf if None in scores else float(np.mean(scores))


def confirmed(entry: Entry, results: Results) -> dict[Config, Outcome]:
    """The runs of a row, seed by seed."""
    best = tuned(entry, results)
    configs = [dataclasses.replace(best, seed=seed) for seed in SEEDS]
    return {config: result(config, results) for config in configs}


def _rounded(rate):
    return float(f"{rate:.4g}")
