"""What the committed runs of `examples/study` say about each method, as tables.

Pages take every measured number from here, so later runs replace them. A method has up
to two settings (``examples/study/pages/protocol.md``): *own*, the recipe as it stands,
and *matched*, its updates brought to AdamW's size. It needs no Sphinx.
"""

import functools
import math
import statistics
from collections.abc import Callable, Iterator

import facts
from rst import Table, from_markdown

import optax_matrix as om
from examples.study.bench import results, spectra as measured, times
from examples.study.bench.comparison import OPTIONS, all_methods, entry, not_run
from examples.study.bench.methods import OWN_RATES
from examples.study.bench.statistics import REFERENCE, Row, difference, row, steps_to
from examples.study.bench.studies import STUDIES, tuned
from examples.study.bench.tasks import MAIN
from examples.study.equal import (
    front,
    protocol as equal_protocol,
    space,
    statistics as equal_statistics,
    table as equal,
)

METHODS = [recipe.__name__ for group in om.recipes.METHODS.values() for recipe in group]


@functools.cache
def rows() -> dict[tuple[str, str, str], Row]:
    """The finished rows by task, method and setting."""
    found = results.read()
    entries = [e for task in MAIN for e in all_methods(task)]
    made = [(e, row(e, found)) for e in entries]
    return {(e.task, _plain(e.method), e.setting): r for e, r in made if r}


@functools.cache
def adamw(task: str, setting: str = "matched") -> Row | None:
    """AdamW's row: of one rate, or *tuned*."""
    one = tuned(task) if setting == "tuned" else entry(task, REFERENCE)
    return row(one, results.read())


@functools.cache
def spectra() -> dict[str, measured.Row]:
    """Singular values of one kernel by method."""
    return measured.read()


def _plain(method: str) -> str:
    return {with_options: name for name, with_options in OPTIONS.items()}.get(
        method, method
    )


def usual(method: str) -> str:
    """The setting of a recipe as it stands."""
    return "own" if method in OWN_RATES else "matched"


def of_method(method: str, setting: str | None = None) -> dict[str, Row]:
    """Its rows by task: of a setting, or of the better one on each task."""
    found = {}
    for task in MAIN:
        settings = [setting] if setting else ["matched", "own"]
        here = [rows().get((task, method, s)) for s in settings]
        if there := [r for r in here if r]:
            found[task] = min(there, key=lambda r: r.loss)
    return found


# Tables of all methods.

LENGTHS = "shorter", "longer", "smaller_batch", "larger_batch"  # Studies.


def rates_by_length() -> Table:
    """Best rates of *books* with other lengths and batches."""
    found = results.read()
    columns = {
        study: {
            (_plain(e.method), e.setting): row(e, found) for e in STUDIES[study](found)
        }
        for study in LENGTHS
    }
    body = []
    for method, setting in columns["shorter"]:
        here = rows().get(("books", method, setting)) or adamw("books")
        short, long, *batches = (columns[s][method, setting] for s in LENGTHS)
        cells = [f"{r.rate:.2g}" for r in (short, here, long, *batches)]
        name = f"``{method}``" if method == REFERENCE else _link(method)
        body.append([name, setting, *cells])
    headings = "method", "setting", "steps / 4", "steps", "steps x 4"
    return Table((*headings, "batch / 4", "batch x 4"), body)


def costs() -> Table:
    """State and time of every method beside AdamW's."""
    measured = times.read()
    base = adamw("books").state_bytes
    body = []
    for method in METHODS:
        of_books = of_method(method).get("books")
        name = OPTIONS.get(method, method)
        ratios = [
            measured[task, name].relative for task in MAIN if (task, name) in measured
        ]
        body.append(
            [
                _link(method),
                f"{of_books.state_bytes / base:.2f}" if of_books else _blank(method),
                f"{statistics.mean(ratios):.2f}" if ratios else "",
                *(against(r) for r in _in_order(of_method(method))),
            ]
        )
    return Table(("method", "state", "time", *MAIN), body)


def _blank(method: str) -> str:
    return "not run yet" if method in not_run() else ""


def _in_order(found: dict[str, Row]) -> Iterator[Row | None]:
    return (found.get(task) for task in MAIN)


def choices() -> Table:
    """What a reader wants, the methods for it, and what they cost."""
    body = [
        [wanted, " or ".join(map(_link, methods)), *costs]
        for wanted, methods, *costs in front.choices()
    ]
    body.append(["something else", ":doc:`all methods </gallery/index>`", "", ""])
    return Table(front.CHOICE_HEADINGS, body)


def equal_budgets() -> Table:
    """Every method that was tuned with the same budget as AdamW."""
    headings, body = _parsed(equal.summary(_equal_runs()))
    linked = [[_linked(name), *cells] for name, *cells in body]
    return Table(headings, linked)


@functools.cache
def _equal_runs() -> equal_protocol.Results:
    return equal.read()


def equal_rows(method: str) -> dict[str, tuple[equal_statistics.Row, ...]]:
    """The rows of a method and of AdamW, by task, at the first length."""
    found = {}
    for task in MAIN if method in space.METHODS else ():
        names = method, REFERENCE
        entries = [equal_protocol.Entry(task, name) for name in names]
        if method in space.methods(task):
            pair = [equal_statistics.row(e, _equal_runs()) for e in entries]
            if all(pair):
                found[task] = tuple(filter(None, pair))
    return found


def _linked(cell: str) -> str:
    name = cell.strip("`")
    return _link(name) if name in METHODS else f"``{name}``"


def _parsed(markdown: str) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of a table in Markdown."""
    split = lambda line: [cell.strip() for cell in line.strip("|").split("|")]
    headings, _, *body = map(split, markdown.splitlines())
    return headings, body


# Tables of one method.


def of_equal_budgets(method: str) -> Table:
    """A method against AdamW with equal budgets, a row for each task and length."""
    headings, body = _parsed(equal.summary(_equal_runs()))
    found = {name.strip("`"): cells for name, *cells in body}
    if method not in space.METHODS or method not in found:
        return Table(("runs", "against AdamW"), [])
    pairs = zip(headings[1:-2], found[method], strict=False)
    return Table(
        ("runs", "against AdamW"), [[run, cell] for run, cell in pairs if cell]
    )


def of_study(method: str) -> Table:
    """Loss, difference to AdamW's and speedup of a method on every task."""
    body = []
    for task in MAIN:
        for setting in ("own", "matched"):
            if found := rows().get((task, method, setting)):
                body.append(
                    [
                        task,
                        setting,
                        f"{found.rate:.2g}",
                        f"{found.rate / adamw(task).rate:.3g}",
                        f"{found.loss:.3f} ± {found.spread:.3f}",
                        against(found),
                    ]
                )
    headings = "task", "setting", "best rate", "over AdamW's", "loss", "against AdamW"
    return Table(headings, body)


def against(ours: Row | None) -> str:
    """The difference to AdamW's loss with its interval, and the speedup."""
    if ours is None:
        return ""
    base = adamw(ours.entry.task)
    mean, half = difference(ours, base)
    if not math.isfinite(mean):
        return "failed"
    steps = steps_to(ours, base.curve[-1])
    speedup = f", {base.steps[-1] / steps:.2f}x" if math.isfinite(steps) else ""
    return f"{mean:+.3f} ± {half:.3f}{speedup}"


def _link(method: str) -> str:
    return f":doc:`{method} </gallery/{method}>`"


TABLES: dict[str, Callable[[], Table]] = {  # For the directive of `tables`.
    "rates-by-length": rates_by_length,
    "choices": choices,
    "costs": costs,
    "equal-budgets": equal_budgets,
    "papers": facts.papers,
    "versions": facts.versions,
    "when": facts.when,
}
TEXTS: dict[str, Callable[[], str]] = {
    "front-caption": lambda: from_markdown(front.caption(equal.read())),
    "front-expect": lambda: from_markdown(front.expect(equal.read())),
}
