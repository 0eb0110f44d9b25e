"""All methods over all tasks: how much of AdamW's gap to the best method they close."""

import math
import statistics

from examples.study.bench.comparison import all_methods
from examples.study.bench.markdown import lines
from examples.study.bench.search import Results, is_finished
from examples.study.bench.statistics import REFERENCE, ranked
from examples.study.bench.tasks import MAIN


def report(results: Results) -> str:
    """A row for every method, in the better of its settings; the largest mean first."""
    columns = [_closed(task, results) for task in MAIN]
    if not all(columns):
        return "This table waits for the end of the three studies."
    shares = {name: [column[name] for column in columns] for name in columns[0]}
    rows = [(name, *row, statistics.mean(row)) for name, row in shares.items()]
    rows.sort(key=lambda row: -row[-1] if math.isfinite(row[-1]) else math.inf)
    cells = [[f"`{name}`", *map(_percent, row)] for name, *row in rows]
    return lines(("method", *MAIN, "mean"), cells)


def _closed(task: str, results: Results) -> dict[str, float]:
    """The share of the gap by method; empty before the end of the study."""
    entries = all_methods(task)
    if not all(is_finished(e, results) for e in entries):
        return {}
    losses: dict[str, float] = {}
    for row in ranked(entries, results):  # The smallest loss of a method comes first.
        losses.setdefault(row.entry.method, row.loss)
    adamw, best = losses[REFERENCE], min(losses.values())
    gap = adamw - best or math.nan  # AdamW may be the best one.
    return {name: (adamw - loss) / gap for name, loss in losses.items()}


def _percent(share):
    return f"{share:.0%}" if math.isfinite(share) else "-"
