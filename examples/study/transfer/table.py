"""Tables in Markdown."""

import dataclasses
import math
import pathlib

import numpy as np

from examples.study.bench import results
from examples.study.bench.markdown import lines
from examples.study.bench.missing import MissingError
from examples.study.compare.table import size
from examples.study.equal.config import Config
from examples.study.equal.protocol import Entry
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
    name, mean = one.entry.method, one.losses.mean()
    spread = f" ± {one.losses.std(ddof=1):.4f}" if len(one.losses) > 1 else ""
    loss = f"{mean:.4f}{spread}" if math.isfinite(mean) else "failed"
    against = _against(one, rows.get("adamw"), times)
    _, over, *_ = _against(one, rows.get(ONE_RATE), times)
    return [
        *(f"`{name}`", loss, f"{len(one.losses)}", *against[:3], over),
        *(f"{times[name]:.1f}", against[3], size(one.state_bytes)),
    ]


def _against(one: Row, reference: Row | None, times):
    """Difference of losses, speedup in steps, its interval, and speedup in time."""
    if reference is None or reference is one:
        return ["", "", "", ""]
    if not np.isfinite([*one.losses, *reference.losses]).all():
        return ["", "", "", ""]
    count = min(len(one.losses), len(reference.losses))
    mine, theirs = _first(one, count), _first(reference, count)
    found, low, high = speedup(mine, theirs)
    if not found:
        return [_difference(mine, theirs), "-", "", "-"]
    ends = f"{low:.2f} to {high:.2f}" if low else f"at most {high:.2f}"
    faster = found * times[reference.entry.method] / times[one.entry.method]
    shown = ends if count > 4 else ""  # Too few seeds for an interval by resampling.
    return [_difference(mine, theirs), f"{found:.2f}", shown, f"{faster:.2f}"]


def _first(row, count):
    """A row with its first seeds only; all rows run them in the same order."""
    return dataclasses.replace(
        row, losses=row.losses[:count], curves=row.curves[:count]
    )


def _difference(ours, reference):
    if len(ours.losses) == 1:
        return f"{ours.losses[0] - reference.losses[0]:+.4f}"
    mean, half = difference(ours, reference)
    return f"{mean:+.4f} ± {half:.4f}"


def settings(found: Results) -> str:
    """What the search chose, and its loss there."""
    cells = []
    for name in ROWS:
        try:
            c = protocol.tuned(name, LENGTHS, found)
        except MissingError:
            continue
        given = c.rate, c.warm_up, c.b1, c.b2, c.decay, c.other_rate
        cells.append([f"`{name}`", *map(_number, given), _shown(found[c].loss)])
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
    settings = "rate", "other leaves", "warm-up", "b1", "b2", "decay"
    heads = "method", *settings, "validation"
    return lines(heads, cells) if cells else "Nothing has been searched yet."


def _varied(config):
    c = config
    return c.rate, c.other_rate, c.warm_up, c.b1, c.b2, c.decay


def _shown(loss):
    return "failed" if loss is None else f"{loss:.4f}"


REPORTS = {
    "transfer": lambda _: report(read()),
    "transfer_settings": lambda _: settings(read()),
    "transfer_search": lambda _: search(read()),
}
