"""Tables in Markdown."""

import dataclasses
import math
import pathlib

import numpy as np

from examples.study.bench import results
from examples.study.bench.markdown import lines
from examples.study.compare.table import size
from examples.study.equal.config import Config
from examples.study.equal.protocol import Entry, MissingError
from examples.study.equal.statistics import Row, difference, row_of, speedup
from examples.study.transfer import protocol
from examples.study.transfer.protocol import ONE_RATE, ROWS, SEEDS, TASK, Results
from examples.study.transfer.training import FULL

PATH = pathlib.Path(__file__).parents[1] / "results" / "transfer.jsonl"
HEADINGS = (
    *("method", "loss", "seeds", "against AdamW", "speedup", "95% interval"),
    *("over one rate", "ms", "speedup in time", "state"),
)
SETTINGS = (
    *("row", "rate", "warm-up", "b1", "b2", "decay", "other leaves' rate"),
    "validation",
)
LENGTHS = FULL.lengths


def read(path: pathlib.Path = PATH) -> Results:
    """The runs of a file."""
    return results.read(path, Config)


def report(found: Results) -> str:
    """The rows, as far as they have run, smallest loss first."""
    rows = {}
    for name in ROWS:
        if runs := protocol.row(name, LENGTHS, found):
            rows[name] = row_of(Entry(TASK, name, seeds=SEEDS), runs)
    if not rows:
        return "No row has a run yet."
    order = sorted(rows.values(), key=lambda one: one.losses.mean())
    times = {name: _milliseconds(name, found) for name in rows}
    return lines(HEADINGS, [_cells(one, rows, times) for one in order])


def _milliseconds(name, found):
    runs = protocol.row(name, LENGTHS, found).values()
    return float(np.median([run.milliseconds for run in runs]))


def _cells(one: Row, rows, times):
    mean, name = one.losses.mean(), one.entry.method
    spread = f" ± {one.losses.std(ddof=1):.4f}" if len(one.losses) > 1 else ""
    loss = f"{mean:.4f}{spread}" if math.isfinite(mean) else "failed"
    cost = f"{times[name]:.1f}", size(one.state_bytes)
    against, steps, ends, faster = "", "", "", ""
    adamw, single = (_paired(rows.get(key), one) for key in ("adamw", ONE_RATE))
    if adamw and math.isfinite(mean):
        mine, reference = adamw
        against = _difference(mine, reference)
        found, low, high = speedup(mine, reference)
        steps = f"{found:.2f}" if found else "-"
        if found and len(mine.losses) > 2:
            ends = f"{low:.2f} to {high:.2f}" if low else f"at most {high:.2f}"
        faster = f"{found * times['adamw'] / times[name]:.2f}" if found else "-"
    over = ""
    if single and math.isfinite(mean):
        found, *_ = speedup(*single)
        over = f"{found:.2f}" if found else "-"
    shown = f"`{name}`", loss, f"{len(one.losses)}"
    return [*shown, against, steps, ends, over, cost[0], faster, cost[1]]


def _paired(reference: Row | None, ours: Row) -> tuple[Row, Row] | None:
    """Two rows with the seeds that both have; None for a row and itself."""
    if reference is None or reference is ours:
        return None
    count = min(len(ours.losses), len(reference.losses))
    return _first(ours, count), _first(reference, count)


def _first(row, count):
    return dataclasses.replace(
        row, losses=row.losses[:count], curves=row.curves[:count]
    )


def _difference(ours, reference):
    if len(ours.losses) == 1:
        return f"{ours.losses[0] - reference.losses[0]:+.4f}"
    mean, half = difference(ours, reference)
    return f"{mean:+.4f} ± {half:.4f}" if math.isfinite(mean) else ""


def settings(found: Results) -> str:
    """What the search chose, and its loss there."""
    cells = []
    for name in ROWS:
        try:
            c = protocol.tuned(name, LENGTHS, found)
        except MissingError:
            continue
        given = c.rate, c.warm_up, c.b1, c.b2, c.decay, c.other_rate
        loss = f"{found[c].loss:.4f}"
        cells.append([f"`{name}`", *map(_number, given), loss])
    return lines(SETTINGS, cells) if cells else "Nothing has been searched yet."


def _number(value):
    return "" if value is None else f"{value:.3g}"


def search(found: Results) -> str:
    """Every run of the search, in the order in which they ran."""
    cells = [
        [f"`{c.method}`", *map(_number, _varied(c)), _shown(r.loss)]
        for c, r in found.items()
        if c.seed == protocol.TUNING
    ]
    heads = "method", "rate", "other leaves", "warm-up", "b1", "decay", "validation"
    return lines(heads, cells) if cells else "Nothing has been searched yet."


def _varied(config):
    c = config
    return c.rate, c.other_rate, c.warm_up, c.b1, c.decay


def _shown(loss):
    return "failed" if loss is None else f"{loss:.4f}"


REPORTS = {
    "transfer": lambda _: report(read()),
    "transfer_settings": lambda _: settings(read()),
    "transfer_search": lambda _: search(read()),
}
