"""What the runs say: paired differences to AdamW, and speedups with intervals."""

import dataclasses
import itertools
import math

import numpy as np
from scipy import special, stats

from examples.study.bench import statistics
from examples.study.bench.config import Result
from examples.study.equal.config import Config
from examples.study.equal.protocol import Entry, Results, confirmed, due


@dataclasses.dataclass(frozen=True)
class Row:
    """A row whose runs are finished.

    Attributes:
        entry: Method, task and length.
        config: Its settings, with the first seed.
        losses: Final test loss by seed; infinite for a failed run.
        steps: Steps of the curves.
        curves: Test loss at these steps, a row for each seed; NaN in failed runs.
        state_bytes: Bytes of the optimizer's state.
    """

    entry: Entry
    config: Config
    losses: np.ndarray
    steps: np.ndarray
    curves: np.ndarray
    state_bytes: int


def row(entry: Entry, results: Results) -> Row | None:
    """The row of an entry; None while runs are missing."""
    if due(entry, results):
        return None
    return row_of(entry, confirmed(entry, results))


def row_of(entry: Entry, found: dict[Config, Result]) -> Row:
    """The row of finished runs, one for each seed."""
    runs = list(found.values())
    steps = max((run.curve for run in runs), key=len)
    points = np.array([step for step, _ in steps])
    curves = np.full((len(runs), len(points)), math.nan)
    for curve, run in zip(curves, runs, strict=True):
        if run.loss is not None:
            curve[:] = [loss for _, loss in run.curve]
    losses = [math.inf if run.loss is None else run.loss for run in runs]
    config = next(iter(found))
    size = runs[0].state_bytes
    return Row(entry, config, np.array(losses), points, curves, size)


def difference(ours: Row, adamw: Row) -> tuple[float, float]:
    """Mean difference of the losses, seed by seed, and half of its 95% interval."""
    return statistics.paired(ours.losses - adamw.losses)


def speedup(ours: Row, adamw: Row) -> tuple[float, float, float]:
    """AdamW's steps over ours to AdamW's final loss, on the mean curves.

    Returns:
        The speedup, and the ends of its 95% interval: seeds are drawn with replacement,
        the same for both. Zero where ours does not reach that loss.
    """
    draws = resamples(len(ours.losses))
    drawn = np.array([_speedup(ours, adamw, seeds) for seeds in draws])
    every = np.arange(len(ours.losses))
    return _speedup(ours, adamw, every), *interval(drawn, draws)


def resamples(n: int) -> np.ndarray:
    """Every draw of n out of n with replacement, in any order, a row for each."""
    return np.array([*itertools.combinations_with_replacement(range(n), n)])


def interval(drawn: np.ndarray, draws: np.ndarray) -> tuple[float, float]:
    """The 95% interval of a statistic, from its values for the `resamples`.

    The quantiles of the bootstrap are too near to one another for a small n. Those
    taken here are as far out as Student's t with n - 1 degrees of freedom asks of a
    mean (Hesterberg, 2015, the expanded percentile interval).
    """
    n = draws.shape[1]
    repeats = [np.bincount(draw, minlength=n) for draw in draws]
    ways = math.factorial(n) / special.factorial(repeats).prod(1) / n**n
    order = np.argsort(drawn)
    below = np.cumsum(ways[order])
    most = stats.t.ppf(0.975, n - 1) * math.sqrt(n / (n - 1)) if n > 1 else 0.0
    ends = below.searchsorted(stats.norm.cdf([-most, most]))
    low, high = drawn[order][np.minimum(ends, len(draws) - 1)]
    return float(low), float(high)


def _speedup(ours, adamw, seeds):
    """Zero if our curve does not reach AdamW's last loss."""
    mean, reference = ours.curves[seeds].mean(0), adamw.curves[seeds].mean(0)
    steps = statistics.first_at(ours.steps, mean, reference[-1])
    return float(adamw.steps[-1] / max(steps, 1.0))
