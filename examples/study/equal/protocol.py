"""Which runs a row gets, from those that it has had.

1. AdamW for embeddings, head, norms and biases is tuned once per task, with AdamW on
   the matrices: 32 settings. All methods keep it.
2. Every method tries the same 16 settings of its matrices. AdamW has the best of the
   first step beside its own.
3. Half and twice the best rate are tried. Longer runs try half, once and twice the best
   rate of the next shorter ones, all else as it is.
4. The best one runs with five other seeds, which are measured on the test set.
5. A method with options or additions in its name has the settings of the method
   without them. Half, once and twice its rate are tried, and more while the best one
   lies at an end. So are rates of methods that only the orders or the search have, and
   of users' functions.

Settings are chosen on the validation set, as the mean of both `TUNING` seeds, for
longer runs with the first one only. A run that failed counts as worse than any other.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

from examples.study.bench.config import Result
from examples.study.bench.missing import next_run, result
from examples.study.bench.tasks import TASKS
from examples.study.equal import space
from examples.study.equal.config import SEEDS, TUNING, Config

LENGTHS = {"books": (1, 4, 16), "digits": (1, 4), "shakespeare": (1, 4)}
BRACKET = 0.5, 1.0, 2.0
LIMIT = 10  # Rates of step 5.

Results = Mapping[Config, Result]


@dataclasses.dataclass(frozen=True)
class Entry:
    """A row: a method on a task, at a length; without a method, the other leaves.

    Attributes:
        task: A name of `bench.tasks.TASKS`.
        method: A key of `space.METHODS` or `space.RANKED`, with options or without;
            None for AdamW of the other leaves.
        length: A factor of the task's steps, of `LENGTHS`.
        seeds: Seeds of the row; none for a method whose settings are only chosen.
        own: What a user's function searches; None for a method of the comparison.
    """

    task: str
    method: str | None = None
    length: int = 1
    seeds: tuple[int, ...] = SEEDS
    own: space.Search | None = None


def entries(task: str, lengths: Sequence[int]) -> list[Entry]:
    """The rows of a task, short ones first."""
    return [Entry(task, name, n) for n in lengths for name in space.methods(task)]


def due(entry: Entry, results: Results) -> Config | None:
    """The next run of an entry; None if it has had all of them."""
    if entry.method is None:
        return next_run(other, entry.task, results)
    return next_run(confirmed, entry, results)


def left(rows: Sequence[Entry], results: Results) -> int:
    """Runs that rows still lack."""

    def missing(entry):
        steps = TASKS[entry.task].steps * entry.length
        wanted = entry.task, entry.method or "adamw", steps
        seeds = *TUNING, *entry.seeds
        had = sum(
            (c.task, c.method, c.steps) == wanted for c in results if c.seed in seeds
        )
        return max(_budget(entry) - had, 0)

    return sum(map(missing, rows))


def _budget(entry):
    """Runs of an entry at least; AdamW's begin with those of the other leaves."""
    shared = len(space.POINTS) * len(TUNING)
    row = len(entry.seeds)
    if entry.length > 1:
        return len(BRACKET) + row
    if entry.method is None:
        return shared
    if _base(entry) != entry:
        return len(BRACKET) * len(TUNING) + row
    tried = len(space.METHOD_POINTS) + len(BRACKET) - 1
    own = tried * len(TUNING) + row
    return own + shared if entry.method == "adamw" else own


def _base(entry):
    """The entry of the method without its options."""
    return dataclasses.replace(entry, method=space.base_of(entry.method))


def other(task: str, results: Results) -> Config:
    """The best settings of AdamW for the other leaves."""
    return best_of(space.others(task), TUNING, results)


def tuned(entry: Entry, results: Results) -> Config:
    """The best settings of a method at a length, with a seed of no meaning."""
    if entry.length > 1:
        lengths = LENGTHS[entry.task]
        shorter = lengths[lengths.index(entry.length) - 1]
        middle = tuned(dataclasses.replace(entry, length=shorter), results)
        steps = TASKS[entry.task].steps * entry.length
        return best_of(bracket(middle, steps), TUNING[:1], results)
    if (base := _base(entry)) != entry:
        middle = dataclasses.replace(tuned(base, results), method=entry.method)
        tried = bracket(middle, middle.steps)
        return best_inside(tried, _scaled, TUNING, LIMIT, results)
    best = other(entry.task, results)
    tried = space.candidates(entry.method, best, entry.own)
    if entry.method == best.method:
        tried.append(best)
    middle = best_of(tried, TUNING, results)
    three = bracket(middle, middle.steps)
    most = len(three) if entry.method in space.METHODS else LIMIT
    return best_inside(three, _scaled, TUNING, most, results)


def validated(entry: Entry, results: Results) -> float:
    """The validation loss that chose the settings of a method; infinite if it failed.

    Raises:
        MissingError: If a run is missing.
    """
    return _loss(tuned(entry, results), TUNING, results)


def bracket(middle: Config, steps: int) -> list[Config]:
    """Half, once and twice a rate."""
    return [_moved(middle, factor, steps) for factor in BRACKET]


def _moved(config, factor, steps):
    return dataclasses.replace(_scaled(config, factor), steps=steps)


def _scaled(config, factor):
    return dataclasses.replace(config, rate=float(f"{config.rate * factor:.4g}"))


def best_inside(
    tried: Sequence[Config],
    scaled: Callable[[Config, float], Config],
    seeds: Sequence[int],
    most: int,
    results: Results,
) -> Config:
    """The best settings, with one beyond them on either side, of at most `most`.

    Args:
        tried: Settings a factor of two apart, in order.
        scaled: Settings times a factor.
        seeds: Seeds of the mean loss.
        most: Settings that are tried.
        results: The finished runs.
    """
    tried = list(tried)
    while True:
        found = best_of(tried, seeds, results)
        if found == tried[0] and len(tried) < most:
            tried.insert(0, scaled(found, BRACKET[0]))
        elif found == tried[-1] and len(tried) < most:
            tried.append(scaled(found, BRACKET[-1]))
        else:
            return found


def confirmed(entry: Entry, results: Results) -> dict[Config, Result]:
    """The runs of a row, seed by seed."""
    best = tuned(entry, results)
    configs = [dataclasses.replace(best, seed=seed) for seed in entry.seeds]
    return {config: result(config, results) for config in configs}


def best_of(tried: Sequence[Config], seeds: Sequence[int], results: Results) -> Config:
    """The settings with the smallest mean loss; the first of equal ones."""
    return min(tried, key=lambda settings: _loss(settings, seeds, results))


def _loss(settings, seeds, results):
    configs = [dataclasses.replace(settings, seed=seed) for seed in seeds]
    losses = [result(config, results).loss for config in configs]
    return math.inf if None in losses else sum(losses) / len(losses)
