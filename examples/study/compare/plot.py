"""The curves as a picture: the whole run, and its second half enlarged."""

import math
import pathlib
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from examples.study.compare.protocol import (
    REFERENCE,
    Curve,
    Row,
    at_best_learning_rate,
)
from examples.study.compare.styles import styles


def draw(curves: Sequence[Curve], rows: Sequence[Row], path: pathlib.Path) -> None:
    """Draws validation loss against steps for each optimizer at its best rate.

    Args:
        curves: All runs.
        rows: The table; it orders the legend.
        path: The picture to write: PNG, SVG or PDF by its suffix.
    """
    figure = Figure(figsize=(12, 5), layout="constrained")
    whole, late = figure.subplots(1, 2)
    looks = styles([row.optimizer for row in rows])
    for row, style in zip(rows, looks, strict=True):
        mine = [c for c in curves if c.optimizer == row.optimizer]
        for axes in (whole, late):
            _line(axes, at_best_learning_rate(mine), row, style)
    target = next(row.loss for row in rows if row.optimizer == REFERENCE)
    for axes in (whole, late):
        axes.axhline(target, color="black", linewidth=0.8, linestyle=":")
        axes.set_xlabel("step")
        axes.grid(alpha=0.25)
    whole.set_ylabel("validation loss (nats per token)")
    whole.set_title("whole run")
    late.set_title("second half; dotted: AdamW's final loss")
    _enlarge(late, curves, rows)
    figure.legend(*whole.get_legend_handles_labels(), loc="outside right center")
    figure.savefig(path, dpi=130)


def whole_runs(group: Sequence[Curve]) -> tuple[tuple[int, ...], np.ndarray]:
    """Evaluated steps, and the losses of all runs that got as far as any.

    Returns:
        The steps, and losses of shape ``(seeds, steps)``.
    """
    steps = max((curve.steps for curve in group), key=len)
    return steps, np.array([c.losses for c in group if c.steps == steps])


def _line(axes, group, row, style):
    steps, losses = whole_runs(group)
    final = f"{row.loss:.3f}" if math.isfinite(row.loss) else "diverged"
    label = f"{row.optimizer} {final}"
    axes.plot(steps, np.median(losses, axis=0), label=label, **style)
    if len(losses) > 1:
        low, high = losses.min(axis=0), losses.max(axis=0)
        axes.fill_between(steps, low, high, color=style["color"], alpha=0.15)


def _enlarge(axes, curves, rows):
    last = max(curve.steps[-1] for curve in curves)
    chosen = {(row.optimizer, row.learning_rate) for row in rows}
    late = [
        loss
        for curve in curves
        if (curve.optimizer, curve.learning_rate) in chosen
        for step, loss in zip(curve.steps, curve.losses, strict=True)
        if step >= last / 2 and math.isfinite(loss)
    ]
    if not late:
        return
    margin = 0.03 * (max(late) - min(late)) + 1e-6
    axes.set_xlim(last / 2, last)
    axes.set_ylim(min(late) - margin, max(late) + margin)
