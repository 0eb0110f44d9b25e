"""Which runs a row gets, from those that it has had.

1. AdamW for embeddings, head, norms and biases is tuned once per task, with AdamW on
   the matrices: 32 settings. All methods keep it.
2. Every method tries the same 16 settings of its matrices. AdamW has the best of the
   first step beside its own.
3. Half and twice the best rate are tried. Longer runs try half, once and twice the best
   rate of the next shorter ones, all else as it is.
4. The best one runs with five other seeds, which are measured on the test set.

Steps 1 to 3 are measured on the validation set, as the mean of both `TUNING` seeds, for
longer runs with the first one only. A run that failed counts as worse than any other.
"""

import collections
import dataclasses
import math
from collections.abc import Mapping, Sequence

from examples.study.bench.config import Result
from examples.study.bench.tasks import TASKS
from examples.study.equal import space
from examples.study.equal.config import SEEDS, TUNING, Config

LENGTHS = {"books": (1, 4, 16), "digits": (1, 4), "shakespeare": (1, 4)}
BRACKET = 0.5, 1.0, 2.0

Results = Mapping[Config, Result]


@dataclasses.dataclass(frozen=True)
class Entry:
    """A row: a method on a task, at a length; without a method, the other leaves.

    Attributes:
        task: A name of `bench.tasks.TASKS`.
        method: A key of `space.METHODS`; None for AdamW of the other leaves.
        length: A factor of the task's steps, of `LENGTHS`.
    """

    task: str
    method: str | None = None
    length: int = 1


class MissingError(Exception):
    """A run that the protocol asks for and the results do not have."""

    def __init__(self, config: Config):
        self.config = config


def entries(task: str, lengths: Sequence[int]) -> list[Entry]:
    """The rows of a task, short ones first."""
    return [Entry(task, name, n) for n in lengths for name in space.methods(task)]


def due(entry: Entry, results: Results) -> Config | None:
    """The next run of an entry; None if it has had all of them."""
    try:
        if entry.method is None:
            other(entry.task, results)
        else:
            confirmed(entry, results)
    except MissingError as missing:
        return missing.config
    return None


def left(rows: Sequence[Entry], results: Results) -> int:
    """Runs that rows still lack."""
    had = collections.Counter((c.task, c.method, c.steps) for c in results)

    def missing(entry):
        steps = TASKS[entry.task].steps * entry.length
        method = entry.method or "adamw"
        return max(_budget(entry) - had[entry.task, method, steps], 0)

    return sum(map(missing, rows))


def _budget(entry):
    """Runs of an entry; AdamW's begin with those of the other leaves."""
    if entry.length > 1:
        return len(BRACKET) + len(SEEDS)
    shared = len(space.POINTS) * len(TUNING)
    if entry.method is None:
        return shared
    tried = len(space.METHOD_POINTS) + len(BRACKET) - 1
    own = tried * len(TUNING) + len(SEEDS)
    return own + shared if entry.method == "adamw" else own


def other(task: str, results: Results) -> Config:
    """The best settings of AdamW for the other leaves."""
    return _best(space.others(task), TUNING, results)


def tuned(entry: Entry, results: Results) -> Config:
    """The best settings of a method at a length, with a seed of no meaning."""
    steps = TASKS[entry.task].steps * entry.length
    if entry.length == 1:
        best = other(entry.task, results)
        tried = space.candidates(entry.method, best)
        if entry.method == best.method:
            tried.append(best)
        seeds = TUNING
        middle = _best(tried, seeds, results)
    else:
        lengths = LENGTHS[entry.task]
        shorter = lengths[lengths.index(entry.length) - 1]
        middle = tuned(dataclasses.replace(entry, length=shorter), results)
        seeds = TUNING[:1]
    return _best(bracket(middle, steps), seeds, results)


def bracket(middle: Config, steps: int) -> list[Config]:
    """Half, once and twice a rate."""
    given = [float(f"{middle.rate * factor:.4g}") for factor in BRACKET]
    return [dataclasses.replace(middle, steps=steps, rate=rate) for rate in given]


def confirmed(entry: Entry, results: Results) -> dict[Config, Result]:
    """The runs of a row, seed by seed."""
    best = tuned(entry, results)
    configs = [dataclasses.replace(best, seed=seed) for seed in SEEDS]
    return {config: _result(config, results) for config in configs}


def _best(tried: Sequence[Config], seeds: Sequence[int], results: Results) -> Config:
    """The settings with the smallest mean loss; the first of equal ones."""

    def loss(settings):
        configs = [dataclasses.replace(settings, seed=seed) for seed in seeds]
        losses = [_result(config, results).loss for config in configs]
        return math.inf if None in losses else sum(losses) / len(losses)

    return min(tried, key=loss)


def _result(config, results):
    if config not in results:
        raise MissingError(config)
    return results[config]
