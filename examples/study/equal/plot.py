"""A picture of a task at a length: losses by step, and speedups with their intervals.

A file says which runs it shows, so that it is drawn anew only when they change.
"""

import hashlib
import json
import pathlib
from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from PIL import Image

from examples.study.bench.tasks import TASKS
from examples.study.equal.config import PATH
from examples.study.equal.protocol import LENGTHS, Results
from examples.study.equal.statistics import Row, speedup
from examples.study.equal.table import REFERENCE, rows_of

EDGE = 0.7  # Of the speedups.
_RUNS = "runs"  # A text in the file: the fingerprint of what it shows.


def file_of(task: str, length: int) -> pathlib.Path:
    """Where the picture of a task at a length is kept."""
    return PATH.with_name(f"equal_{task}_{length}.png")


def is_current(task: str, length: int, found: Results) -> bool:
    """Whether the file shows the rows that are finished now; true if there are none."""
    rows, path = shown(task, length, found), file_of(task, length)
    if not rows:
        return not path.exists()
    if not path.exists():
        return False
    with Image.open(path) as image:
        return image.info.get(_RUNS) == _fingerprint(rows)


def refresh(found: Results) -> None:
    """Draws the pictures that do not show their runs."""
    for task, lengths in LENGTHS.items():
        for length in lengths:
            if not is_current(task, length, found):
                draw(shown(task, length, found), file_of(task, length))


def draw(rows: Sequence[Row], path: pathlib.Path) -> None:
    """Draws AdamW, the last row, and others."""
    *others, adamw = rows
    colors = [colormaps["tab20"](i) for i in range(len(others))]
    figure = Figure(figsize=(13, 5), layout="constrained")
    left, right = figure.subplots(1, 2)
    styles = [{"color": color, "linewidth": 1.5} for color in colors]
    styles.append({"color": "black", "linewidth": 2.5})
    for row, style in zip(rows, styles, strict=True):
        left.plot(row.steps, row.curves.mean(0), label=row.entry.method, **style)
    late = np.concatenate([row.curves.mean(0)[len(row.steps) // 4 :] for row in rows])
    left.set(xlabel="step", ylabel="test loss, mean of five seeds")
    left.set_ylim(np.nanmin(late) - 0.02, np.nanmax(late))
    for place, (row, color) in enumerate(zip(others, colors, strict=True)):
        middle, low, high = speedup(row, adamw)
        if middle:
            right.plot([max(low, EDGE), high], [place] * 2, color=color, linewidth=2)
            right.plot(middle, place, "o", color=color)
        else:
            right.text(EDGE, place, " does not reach it", va="center")
    right.set_xlim(left=EDGE)
    right.axvline(1, color="black", linewidth=2.5)
    right.set_yticks(range(len(others)), [row.entry.method for row in others])
    right.invert_yaxis()
    right.set(xlabel="AdamW's steps / the method's, to AdamW's final loss")
    for one in (left, right):
        one.grid(alpha=0.25)
    left.legend(ncols=2)
    task, steps = TASKS[adamw.entry.task], int(adamw.steps[-1])
    figure.suptitle(f"{task.title}, {steps:,} steps, equal budgets")
    figure.savefig(path, dpi=90, metadata={_RUNS: _fingerprint(rows)})


def shown(task: str, length: int, found: Results) -> list[Row]:
    """Finished rows without a failed run, the best one first, AdamW last."""
    rows = rows_of(task, length, found)
    adamw = next((row for row in rows if row.entry.method == REFERENCE), None)
    if adamw is None or len(rows) < 2:
        return []
    others = [row for row in rows if row is not adamw]
    return [*(row for row in others if np.isfinite(row.losses).all()), adamw]


def _fingerprint(rows):
    content = [[row.entry.method, row.curves.tolist()] for row in rows]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
