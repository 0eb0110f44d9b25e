"""The protocol: which runs a method gets, from the runs that it has had.

1. Learning rates are tried on a grid of factor two, with the seed `TUNING`: five of
   them around the first, then more at the edge where the best one lies, until it is
   inside. A run that failed counts as worse than any other.
2. At the best rate, one run with each of the seeds `SEEDS`. None of them was seen
   before, and only they make the table. What a study chooses by its table runs
   elsewhere with the seeds `FRESH`.

So every method has the same number of trials, but for the extensions of its grid.
"""

import dataclasses
import math
from collections.abc import Mapping

from examples.study.bench.config import Config, Result

TUNING = 1000
SEEDS = (0, 1, 2, 3, 4)
FRESH = (5, 6, 7, 8, 9)
TRIALS = (0, 1, -1, 2, -2)  # Powers of two.
FEW_TRIALS = TRIALS[:3]  # Around a rate that was the best elsewhere.
LIMIT = 10  # Powers of two from the start at which a search ends.


@dataclasses.dataclass(frozen=True)
class Entry:
    """A method on a task, which the table has in one row.

    Attributes:
        task: A name of `tasks.TASKS`.
        method: A method, with options.
        setting: As in `Config`.
        rate: The learning rate in the middle of the first five.
        steps: Updates of the weights.
        batch: Windows or images per update.
        trials: Learning rates that are tried, as powers of two times `rate`; none for
            a method that has the one given.
        is_extended: Whether the search goes on until the best rate is inside.
        seeds: Seeds of the row.
        weights: As in `Config`.
    """

    task: str
    method: str
    setting: str
    rate: float
    steps: int
    batch: int
    trials: tuple[int, ...] = TRIALS
    is_extended: bool = True
    seeds: tuple[int, ...] = SEEDS
    weights: str = "float32"

    def config(self, rate: float, seed: int) -> Config:
        """A run of this entry."""
        names = [field.name for field in dataclasses.fields(Config)]
        given = {name: getattr(self, name, None) for name in names}
        return Config(**given | {"rate": rate, "seed": seed})


Results = Mapping[Config, Result]


def due(entry: Entry, results: Results) -> Config | None:
    """The next run of an entry; None if it has had all of them."""
    power = next_power(entry, tuning(entry, results))
    if power is not None:
        return entry.config(rate_at(entry, power), TUNING)
    rate = best_rate(entry, results)
    configs = [entry.config(rate, seed) for seed in entry.seeds]
    return next((config for config in configs if config not in results), None)


def is_finished(entry: Entry, results: Results) -> bool:
    """Whether an entry has had all of its runs."""
    return due(entry, results) is None


def tuning(entry: Entry, results: Results) -> dict[int, float]:
    """The trials of an entry: losses by the power of two of the learning rate.

    Losses of failed runs are infinite. Rates that only another study tried are left
    out, so that every method has the same number of trials.
    """
    found: dict[int, float] = {}
    while (power := next_power(entry, found)) is not None:
        config = entry.config(rate_at(entry, power), TUNING)
        if config not in results:
            break
        loss = results[config].loss
        found[power] = math.inf if loss is None else loss
    return found


def next_power(entry: Entry, tried: Mapping[int, float]) -> int | None:
    """The power of two to try next; None if the search is over."""
    missing = [power for power in entry.trials if power not in tried]
    if missing:
        return missing[0]
    if not entry.trials or not entry.is_extended:
        return None
    best = _best(tried)
    if best == min(tried) and best > -LIMIT:
        return best - 1
    if best == max(tried) and best < LIMIT:
        return best + 1
    return None


def best_rate(entry: Entry, results: Results) -> float:
    """The learning rate of the confirming runs."""
    tried = tuning(entry, results)
    return rate_at(entry, _best(tried)) if entry.trials and tried else entry.rate


def _best(tried):
    """The power with the smallest loss; the smallest power if all failed."""
    return min(tried, key=lambda power: (tried[power], power))


def rate_at(entry: Entry, power: int) -> float:
    """A learning rate of the grid, by its power of two from the middle."""
    return entry.rate * 2.0**power


def expected(entry: Entry, results: Results) -> int:
    """Runs that an entry still needs, if its grid is not extended further."""
    tried = tuning(entry, results)
    if next_power(entry, tried) is not None:
        missing = [power for power in entry.trials if power not in tried]
        return max(len(missing), 1) + len(entry.seeds)
    rate = best_rate(entry, results)
    return sum(entry.config(rate, seed) not in results for seed in entry.seeds)
