"""The progress bar: loss, tokens per second, time left."""

import contextlib
import time

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


class Bar:
    """A progress bar over the steps of one run.

    Args:
        progress: The rich display.
        name: Label in front of the bar.
        steps: Length of the run.
        done: Steps that were done before.
        tokens: Tokens per step.
    """

    def __init__(self, progress, name: str, steps: int, done: int, tokens: int):
        self._progress, self._tokens, self._done = progress, tokens, done
        self._task = progress.add_task(
            name, total=steps, completed=done, loss="-", speed="-"
        )
        self._since, self._from = time.perf_counter(), done

    def show(self, step: int, loss: float) -> float:
        """Moves the bar to a step.

        Returns:
            Tokens per second since the last call.
        """
        now = time.perf_counter()
        speed = self._tokens * (step - self._from) / max(now - self._since, 1e-9)
        self._since, self._from = now, step
        self._progress.update(
            self._task, completed=step, loss=f"{loss:.3f}", speed=f"{speed:,.0f}"
        )
        return speed


@contextlib.contextmanager
def display(console: Console | None = None):
    """A rich display for bars; finished bars stay on the screen."""
    columns = (
        TextColumn("{task.description:<17}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]}"),
        TextColumn("{task.fields[speed]} tok/s"),
        TimeElapsedColumn(),
        TimeRemainingColumn(elapsed_when_finished=False),
    )
    with Progress(*columns, console=console) as progress:
        yield progress
