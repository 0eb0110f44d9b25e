"""The results of the runs: best learning rates, and steps to AdamW's final loss.

The rules are those of ARO (Sec. 5.1), applied to measured steps only: a method's
speedup is the length of AdamW's run divided by the first evaluated step at which the
method's validation loss was at or below AdamW's final loss, as a median over seeds. It
is None if that loss was not reached; nothing is extrapolated.
"""

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence

REFERENCE = "adamw"


@dataclasses.dataclass(frozen=True)
class Curve:
    """One run.

    Attributes:
        optimizer: Its name.
        learning_rate: Peak of the schedule.
        seed: Seed of the weights and of the order of the data.
        steps: Evaluated steps.
        losses: Validation loss at these steps; NaN after a divergence.
        milliseconds: Median time of an update.
        state_bytes: Bytes of the optimizer's state.
    """

    optimizer: str
    learning_rate: float
    seed: int
    steps: tuple[int, ...]
    losses: tuple[float, ...]
    milliseconds: float
    state_bytes: int

    @property
    def final(self) -> float:
        """Validation loss at the end; infinite if the run diverged."""
        return self.losses[-1] if math.isfinite(self.losses[-1]) else math.inf


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table: an optimizer at its best learning rate.

    Attributes:
        optimizer: Its name.
        learning_rate: The best learning rate of those tried.
        tried: Number of learning rates tried.
        seeds: Number of runs at each learning rate.
        loss: Final validation loss, median over seeds.
        spread: Smallest and largest final loss over the seeds.
        reached: Step at which AdamW's final loss was reached, median over seeds;
            None if not reached.
        speedup: AdamW's steps divided by `reached`.
        milliseconds: Median time of an update.
        state_bytes: Bytes of the optimizer's state.
    """

    optimizer: str
    learning_rate: float
    tried: int
    seeds: int
    loss: float
    spread: tuple[float, float]
    reached: float | None
    speedup: float | None
    milliseconds: float
    state_bytes: int


def at_best_learning_rate(curves: Sequence[Curve]) -> list[Curve]:
    """One optimizer's curves at the rate with the smallest median final loss."""
    by_rate: dict[float, list[Curve]] = {}
    for curve in curves:
        by_rate.setdefault(curve.learning_rate, []).append(curve)
    median = lambda group: statistics.median(curve.final for curve in group)
    return min(by_rate.values(), key=median)


def first_step_at(curve: Curve, loss: float) -> float:
    """First evaluated step with a loss of at most `loss`; infinite if there is none."""
    pairs = zip(curve.steps, curve.losses, strict=True)
    return next((step for step, value in pairs if value <= loss), math.inf)


def summarize(curves: Sequence[Curve]) -> list[Row]:
    """The table, best validation loss first.

    Args:
        curves: All runs, including AdamW's, with the same seeds for every optimizer.

    Returns:
        One row per optimizer.
    """
    names = dict.fromkeys(curve.optimizer for curve in curves)
    groups = {name: [c for c in curves if c.optimizer == name] for name in names}
    reference = {c.seed: c for c in at_best_learning_rate(groups[REFERENCE])}
    rows = [row(group, reference) for group in groups.values()]
    return sorted(rows, key=lambda row: row.loss)


def row(group: Sequence[Curve], reference: Mapping[int, Curve]) -> Row:
    """One line of the table.

    Args:
        group: All runs of one optimizer.
        reference: AdamW's run by seed; where there is none, nothing is reached.
    """
    best = at_best_learning_rate(group)
    finals = [curve.final for curve in best]
    target = lambda c: reference[c.seed].final if c.seed in reference else -math.inf
    steps = [first_step_at(c, target(c)) for c in best]
    reached = statistics.median(steps)
    length = best[0].steps[-1]
    return Row(
        optimizer=best[0].optimizer,
        learning_rate=best[0].learning_rate,
        tried=len({curve.learning_rate for curve in group}),
        seeds=len(best),
        loss=statistics.median(finals),
        spread=(min(finals), max(finals)),
        reached=reached if math.isfinite(reached) else None,
        speedup=length / reached if math.isfinite(reached) else None,
        milliseconds=statistics.median(curve.milliseconds for curve in group),
        state_bytes=best[0].state_bytes,
    )
