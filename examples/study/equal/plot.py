"""A picture of a task at a length: losses by step, and speedups with their intervals.

A file says which runs it shows, so that it is drawn anew only when they change. A
method has the color that it has in all figures (`styles`).
"""

import hashlib
import json
import pathlib
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from examples.study.bench.tasks import TASKS
from examples.study.compare.styles import styles
from examples.study.equal.config import PATH
from examples.study.equal.protocol import LENGTHS, Results
from examples.study.equal.statistics import Row, speedup
from examples.study.equal.table import REFERENCE, rows_of

EDGE = 0.7  # Of the speedups.
_RUNS = "runs"  # A text in the file: the fingerprint of what it shows.
_LOOK = 3  # Counts how pictures have looked; another number draws all of them anew.


def file_of(task: str, length: int) -> pathlib.Path:
    """Where the picture of a task at a length is kept."""
    return PATH.with_name(f"equal_{task}_{length}.png")


def is_current(task: str, length: int, found: Results) -> bool:
    """Whether the file shows the rows that are finished now; true if there are none."""
    rows, path = shown(task, length, found), file_of(task, length)
    if not rows:
        return not path.exists()
    return is_of(path, rows)


def is_of(path: pathlib.Path, rows: Sequence[Row]) -> bool:
    """Whether a file exists and shows these rows."""
    if not path.exists():
        return False
    with Image.open(path) as image:
        return image.info.get(_RUNS) == fingerprint(rows)


def refresh(found: Results) -> None:
    """Draws the pictures that do not show their runs."""
    for task, lengths in LENGTHS.items():
        for length in lengths:
            if not is_current(task, length, found):
                draw(shown(task, length, found), file_of(task, length))


def draw(rows: Sequence[Row], path: pathlib.Path) -> None:
    """Draws AdamW, the last row, and others."""
    *others, adamw = rows
    figure = Figure(figsize=(13, 5), layout="constrained")
    left, right = figure.subplots(1, 2)
    looks = styles([row.entry.method for row in rows])
    for row, look in zip(rows, looks, strict=True):
        mean = row.curves.mean(0)
        left.plot(row.steps, mean, label=row.entry.method, **look)
    late = np.concatenate([row.curves.mean(0)[len(row.steps) // 4 :] for row in rows])
    left.set(xlabel="step", ylabel="test loss, mean of five seeds")
    left.set_ylim(np.nanmin(late) - 0.02, np.nanmax(late))
    for place, (row, look) in enumerate(zip(others, looks, strict=False)):
        middle, low, high = speedup(row, adamw)
        color = look["color"]
        if middle:
            right.plot([max(low, EDGE), high], [place] * 2, color=color, linewidth=2)
            right.plot(middle, place, "o", color=color)
        else:
            right.text(EDGE, place, " does not reach it", va="center")
    right.set_xlim(left=EDGE)
    right.axvline(1, color="black", linewidth=2.5)
    right.set_yticks(range(len(others)), [row.entry.method for row in others])
    right.set_ylim(len(others) - 0.3, -0.7)  # Texts in the last row are not cut.
    right.set(xlabel="AdamW's steps / the method's, to AdamW's final loss")
    for one in (left, right):
        one.grid(alpha=0.25)
    left.legend(ncols=2)
    task, steps = TASKS[adamw.entry.task], int(adamw.steps[-1])
    figure.suptitle(f"{task.title}, {steps:,} steps, equal budgets")
    figure.savefig(path, dpi=90, metadata={_RUNS: fingerprint(rows)})


def shown(task: str, length: int, found: Results) -> list[Row]:
    """Finished rows without a failed run, the best one first, AdamW last."""
    rows = rows_of(task, length, found)
    adamw = next((row for row in rows if row.entry.method == REFERENCE), None)
    if adamw is None or len(rows) < 2:
        return []
    others = [row for row in rows if row is not adamw]
    return [*(row for row in others if np.isfinite(row.losses).all()), adamw]


def fingerprint(rows: Sequence[Row]) -> str:
    """A text that differs if runs, or the look of pictures, differ."""
    content = [_LOOK, *([row.entry.method, row.curves.tolist()] for row in rows)]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
