"""A picture of a task: return, entropy and divergence by step, means over seeds.

A file says which runs it shows, so that it is drawn anew only when they change. A
method has the color that it has in all figures (`styles`).
"""

import hashlib
import json
import math
import pathlib
from functools import partial

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from scipy import stats

from examples.study.compare.styles import styles
from examples.study.reinforce import table
from examples.study.reinforce.protocol import TASKS, Results

STEP = {"sums": "step", "pendulum": "steps of pendulums"}
RETURN = {
    "sums": "probability of a right answer",
    "pendulum": "mean return of an episode",
}
ENTROPY = {"sums": "entropy per byte", "pendulum": "entropy of the torque"}
AWAY = {"sums": "divergence from the base, per byte", "pendulum": "divergence by round"}
_LOOK = 1  # Counts how pictures have looked; another number draws all of them anew.
_STYLE = {"svg.fonttype": "none", "svg.hashsalt": "reinforce"}


def file_of(task: str) -> pathlib.Path:
    """Where the picture of a task is kept."""
    return table.PATH.with_name(f"reinforce_{task}.svg")


def is_current(task: str, found: Results) -> bool:
    """Whether the file shows the rows that are finished; true if there are none."""
    rows, path = shown(task, found), file_of(task)
    if not rows:
        return not path.exists()
    return path.exists() and fingerprint(rows) in path.read_text()


def refresh(found: Results) -> None:
    """Draws the pictures that do not show their runs."""
    for task in TASKS:
        if not is_current(task, found):
            draw(task, shown(task, found), file_of(task))


def shown(task: str, found: Results) -> dict[str, np.ndarray]:
    """Curves of each finished row with two runs that did not fail."""
    rows = table.rows_of(task, found)
    every = {method: table.curves(runs) for method, runs in rows.items()}
    return {method: curves for method, curves in every.items() if len(curves) > 1}


def draw(task: str, rows: dict[str, np.ndarray], path: pathlib.Path) -> None:
    """Draws rows; bands of returns are 95% intervals of the mean.

    Args:
        task: Of the runs.
        rows: As `shown` returns it.
        path: The picture, an SVG.
    """
    figure = Figure(figsize=(14, 4.5), layout="constrained")
    axes = figure.subplots(1, 3)
    for (method, curves), look in zip(rows.items(), styles([*rows]), strict=True):
        steps, mean = curves[0, :, 0], curves.mean(0)
        for place, one in enumerate(axes, 1):
            late = slice(1, None) if place == 3 else slice(None)
            one.plot(steps[late], mean[late, place], label=method, **look)
        half = _half(curves[:, :, 1])
        low, high = mean[:, 1] - half, mean[:, 1] + half
        axes[0].fill_between(steps, low, high, color=look["color"], alpha=0.12)
    for one, label in zip(axes, (RETURN, ENTROPY, AWAY), strict=True):
        one.set(xlabel=STEP[task], ylabel=label[task])
        one.grid(alpha=0.25)
    axes[2].set_yscale("log")
    axes[0].legend(fontsize="small")
    with mpl.rc_context(_STYLE):
        metadata = {"Date": None, "Description": fingerprint(rows)}
        figure.savefig(path, metadata=metadata)


def _half(values):
    """Half of the 95% interval of the mean over seeds, by Student's t."""
    count = len(values)
    width = float(stats.t.ppf(0.975, count - 1))
    return width * values.std(0, ddof=1) / math.sqrt(count)


def fingerprint(rows: dict[str, np.ndarray]) -> str:
    """A text that differs if runs, or the look of pictures, differ."""
    content = [_LOOK, *([method, curves.tolist()] for method, curves in rows.items())]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def report(task: str, found: Results) -> str:
    """The table of a task, with its picture below."""
    text = table.table(task, found)
    if shown(task, found):
        picture = f"../results/{file_of(task).name}"
        text += f"\n\n![Return, entropy and divergence by step]({picture})"
    return text


def _reports():
    for task in TASKS:
        yield f"reinforce_{task}", partial(report, task)
        yield f"reinforce_{task}_rates", partial(table.rates, task)


REPORTS = {name: lambda _, made=made: made(table.read()) for name, made in _reports()}
