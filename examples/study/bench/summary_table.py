"""The main studies in one table, for the README: AdamW, Muon and the five papers."""

import math
import statistics

from examples.study.bench.comparison import all_methods, entry
from examples.study.bench.markdown import lines
from examples.study.bench.search import Results
from examples.study.bench.statistics import (
    REFERENCE,
    Row,
    difference,
    ranked,
    row,
    steps_to,
)
from examples.study.bench.studies import TUNED, tuned
from examples.study.bench.tasks import MAIN
from examples.study.bench.times import Times, read
from examples.study.compare.table import size

SHOWN = "muoneq", "aro", "soap", "racs", "alice", "sumo", "poet", "muon", REFERENCE


def report(results: Results, measured: Times | None = None) -> str:
    """Loss against AdamW's and speedup, task by task; empty cells are still to run.

    A method is in the better of its settings, by the losses shown. Times are those
    `measured`, or of the file.
    """
    measured = read() if measured is None else measured
    headings, columns = [], []
    for task in MAIN:
        found = {name: _better(task, name, results) for name in SHOWN}
        headings.append(task)
        columns.append(found)
        if task in TUNED:
            headings.append(f"{task}, tuned AdamW")
            columns.append({**found, REFERENCE: row(tuned(task), results)})
    cells = [_cells(name, columns, measured) for name in SHOWN]
    return lines(("method", *headings, "time", "state"), cells)


def _better(task: str, name: str, results: Results) -> Row | None:
    """The row of a method in the better of its settings."""
    if name == REFERENCE:
        return row(entry(task, name), results)
    entries = [e for e in all_methods(task) if e.method == name]
    return next(iter(ranked(entries, results)), None)


def _cells(
    name: str, columns: list[dict[str, Row | None]], measured: Times
) -> list[str]:
    of_tasks = [_against(rows[name], rows[REFERENCE]) for rows in columns]
    times = [measured[t, name].relative for t in MAIN if (t, name) in measured]
    time = f"{statistics.mean(times):.2f}" if times else ""
    of_books = [r for c in columns if (r := c[name]) and r.entry.task == "books"]
    return [
        f"`{name}`",
        *of_tasks,
        time,
        size(of_books[0].state_bytes) if of_books else "",
    ]


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
