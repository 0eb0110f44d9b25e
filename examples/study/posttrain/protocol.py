"""The runs of the study of tuning.

1. Every task has two trained models, its bases: one trained by the tuned AdamW of the
   comparison with equal budgets, one by its tuned Muon for fewer steps, so that both
   have the same test loss (`bases`).
2. AdamW tries 16 settings: its rate, as a multiple of the best one of pretraining, the
   warm-up, and the multiple of the rate of the other leaves, which all methods keep.
3. Every method tries 8 settings of multiple, warm-up and decay, then half and twice the
   best multiple, further while the best one lies at an end. Its momenta are those of
   pretraining. Adapters of rank 8 train nothing else and do not decay.
4. The best setting runs with five other seeds, which are measured on the test sets: of
   the new data, and of the old (what was forgotten).
5. With few steps half, once and twice the best multiple run on the first seed, then
   the five seeds.

Settings are chosen on the validation set of the new data, as the mean of both `TUNING`
seeds. A run that failed counts as worse than any other.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

from examples.study.bench.missing import next_run, result
from examples.study.equal.config import SEEDS, TUNING
from examples.study.equal.space import POINTS
from examples.study.posttrain.changes import CHANGES

BASES = "adamw", "muon"
WHOLE = "adamw", "muon", "muoneq", "soap", "aro", "galore", "sumo", "poet"
ADAPTERS = "lora:adamw", "lora:muon", "lora:muoneq", "lora:pair"
METHODS = WHOLE + ADAPTERS
MULTIPLES = 1 / 32, 2.0  # Of the best rate of pretraining; adapters: 32 times these.
FACTOR_OF_ADAPTERS = 32.0
WARM_UPS, DECAYS = (0.02, 0.4), (1 / 8, 8.0)
LIMIT = 10


@dataclasses.dataclass(frozen=True)
class Config:
    """Everything that decides a run.

    Attributes:
        change: A name of `changes.CHANGES`.
        base: Of `BASES`.
        method: Of `METHODS`.
        steps: Updates.
        multiple: Peak of the rate over the best one of pretraining.
        warm_up: Share of the steps in which it rises.
        decay: Factor of the weight decay of pretraining; None without decay.
        other: Peak of the other leaves' rate over that of pretraining; None for
            adapters.
        seed: Of the order of the data, and of adapters.
    """

    change: str
    base: str
    method: str
    steps: int
    multiple: float
    warm_up: float
    decay: float | None
    other: float | None
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a run measured.

    Attributes:
        loss: On the new data; None if the run failed.
        old: On the data of the first training; None for a trial.
        curve: Steps and losses on a part of the new set.
        stable_rank: Squared Frobenius over squared spectral norm of the change of a
            matrix, mean over matrices; None for a trial.
        cosine: Cosine between the change and the weights before, likewise.
        size: Norm of the change over that of the weights before, likewise.
        seconds: Time of the run.
    """

    loss: float | None
    old: float | None
    curve: list[list[float]]
    stable_rank: float | None
    cosine: float | None
    size: float | None
    seconds: float


Results = Mapping[Config, Outcome]


@dataclasses.dataclass(frozen=True)
class Entry:
    """A row: a method on a base, with many steps or few; without one, other leaves."""

    change: str
    base: str
    method: str | None = None
    few: bool = False

    @property
    def steps(self) -> int:
        """The number of updates."""
        return CHANGES[self.change].steps[self.few]


def entries() -> list[Entry]:
    """All rows, those of many steps first."""
    return [
        Entry(change, base, method, few)
        for few in (False, True)
        for change in CHANGES
        for base in BASES
        for method in METHODS
    ]


def due(entry: Entry, results: Results) -> Config | None:
    """The next run of an entry; None if it has had all of them."""
    return next_run(confirmed if entry.method else other, entry, results)


def left(rows: Sequence[Entry], results: Results) -> int:
    """Runs that rows still lack at least."""

    def missing(entry):
        if not due(entry, results):
            return 0
        budget = 3 + len(SEEDS) if entry.few else (8 + 2) * len(TUNING) + len(SEEDS)
        wanted = entry.change, entry.base, entry.method, entry.steps
        had = sum((c.change, c.base, c.method, c.steps) == wanted for c in results)
        return max(budget - had, 1)

    return sum(map(missing, rows))


def other(entry: Entry, results: Results) -> Config:
    """AdamW's best setting of step 2."""
    tried = [
        Config(
            entry.change,
            entry.base,
            "adamw",
            CHANGES[entry.change].steps[0],
            _between(point[0], MULTIPLES),
            _between(point[3], WARM_UPS),
            1.0,
            _between(point[4], MULTIPLES),
        )
        for point in POINTS[:16]
    ]
    return best_of(tried, TUNING, results)


def candidates(entry: Entry, results: Results) -> list[Config]:
    """The settings that a method tries first; AdamW has the best of step 2 as well."""
    best = other(entry, results)
    is_adapter = entry.method in ADAPTERS
    scale = FACTOR_OF_ADAPTERS if is_adapter else 1.0
    ends = tuple(scale * end for end in MULTIPLES)
    without_decay = is_adapter or entry.method == "poet"
    tried = [
        dataclasses.replace(
            best,
            method=entry.method,
            multiple=_between(point[0], ends),
            warm_up=_between(point[3], WARM_UPS),
            decay=None if without_decay else _between(point[4], DECAYS),
            other=None if is_adapter else best.other,
        )
        for point in POINTS[:8]
    ]
    return tried + [best] * (entry.method == "adamw")


def tuned(entry: Entry, results: Results) -> Config:
    """The best setting of a method, with a seed of no meaning."""
    if entry.few:
        middle = tuned(dataclasses.replace(entry, few=False), results)
        tried = [_scaled(middle, f, entry.steps) for f in (0.5, 1.0, 2.0)]
        return best_of(tried, TUNING[:1], results)
    middle = best_of(candidates(entry, results), TUNING, results)
    tried = [_scaled(middle, f) for f in (0.5, 1.0, 2.0)]
    while True:
        found = best_of(tried, TUNING, results)
        if found == tried[0] and len(tried) < LIMIT:
            tried.insert(0, _scaled(found, 0.5))
        elif found == tried[-1] and len(tried) < LIMIT:
            tried.append(_scaled(found, 2.0))
        else:
            return found


def confirmed(entry: Entry, results: Results) -> dict[Config, Outcome]:
    """The runs of a row, seed by seed."""
    best = tuned(entry, results)
    configs = [dataclasses.replace(best, seed=seed) for seed in SEEDS]
    return {config: result(config, results) for config in configs}


def best_of(tried: Sequence[Config], seeds: Sequence[int], results: Results) -> Config:
    """The setting with the smallest mean loss; the first of equal ones."""
    return min(tried, key=lambda settings: validated(settings, seeds, results))


def validated(settings: Config, seeds: Sequence[int], results: Results) -> float:
    """Mean validation loss; infinite if a run failed.

    Raises:
        MissingError: If a run is missing.
    """
    configs = [dataclasses.replace(settings, seed=seed) for seed in seeds]
    losses = [result(config, results).loss for config in configs]
    return math.inf if None in losses else sum(losses) / len(losses)


def _scaled(config, factor, steps=None):
    multiple = float(f"{config.multiple * factor:.4g}")
    return dataclasses.replace(
        config, multiple=multiple, steps=steps or config.steps, seed=0
    )


def _between(percent, ends):
    low, high = ends
    return float(f"{low * (high / low) ** (percent / 100):.3g}")
