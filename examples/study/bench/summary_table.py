"""The main studies in one table, for the README: AdamW, Muon and the five papers."""

import math
import statistics

from examples.study.bench.comparison import entry
from examples.study.bench.markdown import lines
from examples.study.bench.search import Results
from examples.study.bench.statistics import REFERENCE, Row, difference, row, steps_to
from examples.study.bench.tasks import MAIN
from examples.study.bench.times import Times, read
from examples.study.compare.table import size

SHOWN = "muoneq", "aro", "racs", "alice", "sumo", "poet", "muon", REFERENCE


def report(results: Results, measured: Times | None = None) -> str:
    """Loss against AdamW's and speedup, task by task; empty cells are still to run.

    Times are those `measured`, or of the file.
    """
    measured = read() if measured is None else measured
    found = {
        task: {name: row(entry(task, name), results) for name in SHOWN} for task in MAIN
    }
    cells = [_cells(name, found, measured) for name in SHOWN]
    return lines(("method", *MAIN, "time", "state"), cells)


def _cells(
    name: str, found: dict[str, dict[str, Row | None]], measured: Times
) -> list[str]:
    of_tasks = [_against(rows[name], rows[REFERENCE]) for rows in found.values()]
    times = [measured[t, name].relative for t in MAIN if (t, name) in measured]
    time = f"{statistics.mean(times):.2f}" if times else ""
    state = size(row.state_bytes) if (row := found["books"][name]) else ""
    return [f"`{name}`", *of_tasks, time, state]


def _against(ours: Row | None, adamw: Row | None) -> str:
    """The difference of the losses with its interval, and the speedup."""
    if not ours or not adamw:
        return ""
    if ours is adamw:
        return f"{adamw.loss:.3f} ± {adamw.spread:.3f}"
    mean, half = difference(ours, adamw)
    if not math.isfinite(mean):
        return "failed"
    steps = steps_to(ours, adamw.curve[-1])
    speedup = f", {adamw.steps[-1] / steps:.2f}x" if math.isfinite(steps) else ""
    return f"{mean:+.3f} ± {half:.3f}{speedup}"
