"""What the runs say: means over seeds, and paired differences to AdamW."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from scipy import stats

from examples.study.bench.search import Entry, Results, best_rate, due, rate_at, tuning

REFERENCE = "adamw"


@dataclasses.dataclass(frozen=True)
class Row:
    """An entry whose runs are finished.

    Attributes:
        entry: The method, task, length and batch.
        rate: Its best learning rate.
        trials: Loss by learning rate tried; infinite for a failed run.
        failed: Runs that failed, of all.
        losses: Final validation loss by seed; infinite for a failed run.
        steps: Steps of the curve.
        curve: Mean validation loss at these steps.
        state_bytes: Bytes of the optimizer's state.
    """

    entry: Entry
    rate: float
    trials: dict[float, float]
    failed: int
    losses: tuple[float, ...]
    steps: np.ndarray
    curve: np.ndarray
    state_bytes: int

    @property
    def loss(self) -> float:
        return float(np.mean(self.losses))

    @property
    def spread(self) -> float:
        """Standard deviation over seeds."""
        return float(np.std(self.losses, ddof=1))


def row(entry: Entry, results: Results) -> Row | None:
    """The row of an entry; None while runs are missing."""
    if due(entry, results):
        return None
    rate = best_rate(entry, results)
    runs = [results[entry.config(rate, seed)] for seed in entry.seeds]
    tried = tuning(entry, results)
    trials = {rate_at(entry, power): loss for power, loss in tried.items()}
    lost = [math.isinf(loss) for loss in trials.values()]
    whole = [run.curve for run in runs if run.loss is not None]
    return Row(
        entry=entry,
        rate=rate,
        trials=trials,
        failed=sum(lost) + sum(run.loss is None for run in runs),
        losses=tuple(math.inf if r.loss is None else r.loss for r in runs),
        steps=np.array([step for step, _ in whole[0]] if whole else []),
        curve=np.mean([[loss for _, loss in c] for c in whole], 0) if whole else [],
        state_bytes=runs[0].state_bytes,
    )


def difference(ours: Row, reference: Row, count: int = 1) -> tuple[float, float]:
    """Mean difference of the losses to the reference's, seed by seed.

    Args:
        ours: A method.
        reference: What it is compared with.
        count: Comparisons whose intervals hold together (Bonferroni).

    Returns:
        The mean, and half of its 95% confidence interval by Student's t; infinite
        where a run failed.

    Raises:
        ValueError: If their seeds differ.
    """
    if ours.entry.seeds != reference.entry.seeds:
        raise ValueError(
            f"Rows of the same seeds are paired, got {ours.entry.seeds} of "
            f"{ours.entry.method} and {reference.entry.seeds} of "
            f"{reference.entry.method}."
        )
    return paired(np.subtract(ours.losses, reference.losses), count)


def paired(
    parts: np.ndarray, count: int = 1, confidence: float = 0.95
) -> tuple[float, float]:
    """The mean of differences, and half of its interval, as in `difference`."""
    if not np.isfinite(parts).all():
        return math.inf, math.inf
    error = parts.std(ddof=1) / math.sqrt(len(parts))
    width = stats.t.ppf(1 - (1 - confidence) / (2 * count), len(parts) - 1)
    return float(parts.mean()), float(width * error)


def steps_to(row: Row, loss: float) -> float:
    """Steps until the mean curve first reaches a loss, linear between its points.

    Returns:
        The steps; infinite if the curve never does. Nothing is extrapolated.
    """
    return first_at(row.steps, row.curve, loss)


def first_at(steps: np.ndarray, curve: Sequence[float], loss: float) -> float:
    """Steps until a curve first reaches a loss, as in `steps_to`."""
    below = np.flatnonzero(np.asarray(curve) <= loss)
    if not len(below):
        return math.inf
    last = int(below[0])
    if last == 0:
        return float(steps[0])
    (a, b), (high, low) = steps[last - 1 : last + 1], curve[last - 1 : last + 1]
    return float(a + (b - a) * (high - loss) / (high - low))


def speedups(ours: Row, reference: Row) -> np.ndarray:
    """Reference's steps over ours to the same loss, at each point of its curve.

    Where its curve rises, its earlier step with that loss counts for both.
    """
    times = [steps_to(reference, loss) for loss in reference.curve[1:]]
    return np.array(
        [
            time / max(steps_to(ours, loss), 1.0)
            for time, loss in zip(times, reference.curve[1:], strict=True)
        ]
    )


def ranked(entries: Sequence[Entry], results: Results) -> list[Row]:
    """The finished rows, smallest mean loss first."""
    rows = [found for e in entries if (found := row(e, results))]
    return sorted(rows, key=lambda row: row.loss)


def reference(rows: Sequence[Row]) -> Row | None:
    """AdamW's row."""
    found = [r for r in rows if r.entry.method == REFERENCE]
    return found[0] if found else None
