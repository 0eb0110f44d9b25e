"""The verdict on the chains of the search: each against the best published method."""

import math

from examples.study.bench import confirmation, halving
from examples.study.bench.comparison import NotYetError
from examples.study.bench.markdown import lines
from examples.study.bench.search import Results
from examples.study.bench.statistics import ranked
from examples.study.bench.tasks import MAIN


def report(results: Results) -> str:
    """A row for every chain, a column for every task, and what follows.

    A second table leaves out the published methods with a shorter momentum; a third
    one gives it to the chains, too.
    """
    try:
        left = confirmation.survivors(results)
    except NotYetError:
        return "The chains are not confirmed yet."
    entries = {task: confirmation.entries(task, results) for task in MAIN}
    rows = {task: ranked(found, results) for task, found in entries.items()}
    own = {
        task: [r for r in found if not confirmation.is_shortened(r.entry)]
        for task, found in rows.items()
    }
    chains = halving.finalists(results) or []
    return "\n\n".join(
        [
            _table(chains, rows),
            _sentence(left),
            "Against the best published method with its paper's momentum:",
            _table(chains, own),
            *_shortened(results),
        ]
    )


def _shortened(results):
    """The chains with the shorter momentum; nothing while runs are missing."""
    entries = confirmation.with_shorter_chains(results)
    rows = ranked(entries, results)
    if len(rows) < len(entries):
        return []
    names = [e.method for e in entries if confirmation.is_chain(e)]
    heading = f"The chains with momentum {confirmation.SHORTER}, too:"
    return [heading, _table(names, {"books": rows})]


def _table(names, rows):
    headings, columns = ["chain"], []
    for task, found in rows.items():
        target, chains = confirmation.compared(found)
        headings.append(f"{task}: against `{target.entry.method}`")
        columns.append(chains)
    cells = [[f"`{x}`", *(_difference(*c[x]) for c in columns)] for x in names]
    return lines(headings, cells)


def _difference(mean, half):
    return f"{mean:+.4f} ± {half:.4f}" if math.isfinite(mean) else "failed"


def _sentence(left):
    if not left:
        return "No chain beats the best published method on every task."
    names = ", ".join(f"`{name}`" for name in left)
    return f"On every task beyond the interval: {names}."
