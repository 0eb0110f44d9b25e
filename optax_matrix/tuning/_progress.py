"""Bars of the runs of a sweep, by rich where it is installed."""

import contextlib
import importlib.util
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

Show = Callable[[float, int, int, float], Any]


@contextlib.contextmanager
def shown(progress: Any) -> Iterator[Show]:
    """What is told of the runs: a function of rate, steps done, all steps and loss.

    It is told of every rate before its first step, with an infinite loss.
    """
    if callable(progress):
        yield progress
    elif progress and importlib.util.find_spec("rich"):
        with _bars() as show:
            yield show
    else:
        if progress:
            text = "Bars need rich: pip install rich, or pass progress=False."
            warnings.warn(text, stacklevel=5)
        yield lambda *_: None


@contextlib.contextmanager
def _bars() -> Iterator[Show]:
    """A bar for each rate and one for all, on a terminal or where widgets are."""
    from rich import progress
    from rich.console import Console

    console = Console(stderr=True)
    has_widgets = importlib.util.find_spec("ipywidgets") is not None
    is_seen = console.is_terminal or (console.is_jupyter and has_widgets)
    text = progress.TextColumn
    columns = (
        *(text("{task.description:<12}"), progress.BarColumn()),
        *(text("step"), progress.MofNCompleteColumn(), text("{task.fields[loss]:<11}")),
        *(text("time"), progress.TimeElapsedColumn()),
        *(text("left"), progress.TimeRemainingColumn()),
    )
    with progress.Progress(
        *columns, console=console, disable=not is_seen, transient=True
    ) as bars:
        whole = bars.add_task("all", total=0, loss="")
        tasks: dict[float, Any] = {}

        def show(rate: float, done: int, total: int, loss: float) -> None:
            if rate not in tasks:
                tasks[rate] = bars.add_task(f"rate {rate:g}", total=total, loss="")
            said = "diverged" if math.isnan(loss) else f"loss {loss:.4g}"
            bars.update(tasks[rate], completed=done, loss=said if done else "")
            runs = [task for task in bars.tasks if task.id != whole]
            completed, every = (
                sum(getattr(task, name) for task in runs)
                for name in ("completed", "total")
            )
            bars.update(whole, completed=completed, total=every)

        yield show
