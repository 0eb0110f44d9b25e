"""The verdict on the chains of the search: each against the best published method."""

import math

from examples.bench import confirmation, halving
from examples.bench.comparison import NotYetError
from examples.bench.markdown import lines
from examples.bench.search import Results
from examples.bench.statistics import ranked
from examples.bench.tasks import MAIN


def report(results: Results) -> str:
    """A row for every chain, a column for every task, and what follows."""
    try:
        left = confirmation.survivors(results)
    except NotYetError:
        return "The chains are not confirmed yet."
    headings, columns = ["chain"], []
    for task in MAIN:
        rows = ranked(confirmation.entries(task, results), results)
        target, chains = confirmation.compared(rows)
        headings.append(f"{task}: against `{target.entry.method}`")
        columns.append(chains)
    names = halving.finalists(results) or []
    cells = [[f"`{x}`", *(_difference(*c[x]) for c in columns)] for x in names]
    return f"{lines(headings, cells)}\n\n{_sentence(left)}"


def _difference(mean, half):
    return f"{mean:+.4f} ± {half:.4f}" if math.isfinite(mean) else "failed"


def _sentence(left):
    if not left:
        return "No chain beats the best published method on every task."
    names = ", ".join(f"`{name}`" for name in left)
    return f"On every task beyond the interval: {names}."
