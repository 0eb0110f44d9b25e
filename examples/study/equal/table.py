"""Tables in Markdown."""

import math
from functools import partial

from examples.study.bench import results, times
from examples.study.bench.markdown import lines
from examples.study.bench.missing import MissingError
from examples.study.bench.tasks import TASKS
from examples.study.compare.table import size
from examples.study.equal import orders, own, search, space
from examples.study.equal.config import PATH, Config
from examples.study.equal.protocol import LENGTHS, Entry, Results, other
from examples.study.equal.statistics import Row, difference, row, speedup

REFERENCE = "adamw"
HEADINGS = (
    *("method", "loss", "against AdamW", "speedup", "95% interval"),
    *("step", "speedup in time", "state"),
)
SETTINGS = "method", "rate", "warm-up", "b1", "b2", "decay"


def read() -> Results:
    """The committed runs."""
    return results.read(PATH, Config)


def rows_of(task: str, length: int, found: Results) -> list[Row]:
    """The finished rows of a task at a length, smallest loss first.

    Functions of users have rows of length 1.
    """
    every = [row(Entry(task, name, length), found) for name in space.methods(task)]
    every += own.rows(task, found) if length == 1 else ()
    return sorted(filter(None, every), key=lambda one: one.losses.mean())


def table(task: str, length: int, found: Results) -> str:
    """The rows of a task at a length."""
    rows, names = rows_of(task, length, found), space.methods(task)
    count = len(names)
    if not rows:
        return f"None of the {count} rows has all of its runs yet."
    adamw = next((one for one in rows if one.entry.method == REFERENCE), None)
    text = lines(HEADINGS, [cells(one, adamw) for one in rows])
    if left := count - sum(one.entry.method in names for one in rows):
        text += f"\n\n{left} of {count} rows do not have all of their runs yet."
    return text


def summary(found: Results) -> str:
    """Difference to AdamW's loss and speedup, where AdamW and another method have run.

    AdamW's row has its loss. Empty cells are still to run.
    """
    columns = {}
    for task, lengths in LENGTHS.items():
        for length in lengths:
            rows = {n: row(Entry(task, n, length), found) for n in space.methods(task)}
            if rows[REFERENCE] and sum(map(bool, rows.values())) > 1:
                columns[f"{task}, {TASKS[task].steps * length:,} steps"] = rows
    cells = []
    for name in (*(n for n in space.METHODS if n != REFERENCE), REFERENCE):
        pairs = [(rows.get(name), rows[REFERENCE]) for rows in columns.values()]
        if finished := [one for one, _ in pairs if one]:
            time = _time(finished[0].entry)
            costs = f"{time:.2f}" if time else "", size(finished[0].state_bytes)
            cells.append([f"`{name}`", *(_short(*pair) for pair in pairs), *costs])
    return lines(("method", *columns, "time", "state"), cells)


def _short(one, adamw):
    if one is None:
        return ""
    if one is adamw:
        return f"{one.losses.mean():.3f} ± {one.losses.std(ddof=1):.3f}"
    mean, half = difference(one, adamw)
    if not math.isfinite(mean):
        return "failed"
    found, low, high = speedup(one, adamw)
    shown = f", {found:.2f}x ({_ends(low, high)})" if found else ""
    return f"{mean:+.3f} ± {half:.3f}{shown}"


def settings(task: str, length: int, found: Results) -> str:
    """The settings that each finished row runs with; first those of other leaves."""
    try:
        best = other(task, found)
    except MissingError:
        return "The other leaves have not been tuned yet."
    shared = best.other_rate, best.other_warm_up, best.other_b1, best.other_b2
    cells = [["other leaves", *map(_number, (*shared, space.OTHER_DECAY))]]
    for name in space.methods(task):
        if one := row(Entry(task, name, length), found):
            c = one.config
            given = c.rate, c.warm_up, c.b1, c.b2, c.decay
            cells.append([f"`{name}`", *map(_number, given)])
    return lines(SETTINGS, cells)


def _number(value):
    return "" if value is None else f"{value:.3g}"


def cells(one: Row, adamw: Row | None) -> list[str]:
    """A row of the table, as text."""
    mean, spread = one.losses.mean(), one.losses.std(ddof=1)
    loss = f"{mean:.4f} ± {spread:.4f}" if math.isfinite(mean) else "failed"
    time = _time(one.entry)
    shown = f"{time:.2f}" if time else ""
    *against, in_time = _against(one, adamw, time)
    name = f"`{one.entry.method}`"
    return [name, loss, *against, shown, in_time, size(one.state_bytes)]


def _against(one, adamw, time):
    """Difference of the losses, speedup in steps, its interval, speedup in time."""
    if adamw is None or one is adamw:
        return ["", "", "", ""]
    mean, half = difference(one, adamw)
    if not math.isfinite(mean):
        return ["", "", "", ""]
    cells = [f"{mean:+.4f} ± {half:.4f}"]
    found, low, high = speedup(one, adamw)
    if not found:
        return [*cells, "-", "-", "-" if time else ""]
    in_time = f"{found / time:.2f}" if time else ""
    return [*cells, f"{found:.2f}", _ends(low, high), in_time]


def _ends(low, high):
    """An interval of speedups; some drawn seeds may not reach AdamW's loss."""
    return f"{low:.2f} to {high:.2f}" if low else f"at most {high:.2f}"


def _time(entry):
    """An update's time over AdamW's, where it was measured."""
    if entry.method == REFERENCE:
        return 1.0
    measured = times.read().get((entry.task, entry.method))
    return measured.relative if measured else None


def _reports():
    """Reports by the names that pages give them."""
    yield "equal_summary", summary
    yield "equal_orders", orders.report
    yield "equal_looks", orders.looks
    yield "equal_search", search.report
    for task, lengths in LENGTHS.items():
        yield f"settings_{task}", partial(settings, task, 1)
        for length in lengths:
            yield f"equal_{task}_{length}", partial(table, task, length)


REPORTS = {name: lambda _, report=report: report(read()) for name, report in _reports()}
