"""Five methods of the catalogue, with the same budget as those of the comparison.

``python -m examples.study equal try`` runs ``examples.catalogue.tuned:anvil`` and the
others, with ``--results examples/study/results/catalogue.jsonl``.
"""

import pathlib

from examples.study.bench import results
from examples.study.bench.markdown import lines
from examples.study.equal import own, table
from examples.study.equal.config import PATH as COMMITTED, Config
from examples.study.equal.protocol import Entry
from examples.study.equal.statistics import row

PATH = COMMITTED.with_name("catalogue.jsonl")
TASK, METHODS = "books", ("anvil", "conda", "cosmos", "muown", "namo")
BESIDE = table.REFERENCE, "muon", "muoneq", "soap", "mousse"


def report(path: pathlib.Path = PATH) -> str:
    """The finished rows beside five of the comparison, smallest loss first."""
    committed = table.read()
    beside = {f"`{name}`": row(Entry(TASK, name), committed) for name in BESIDE}
    rows = {name: one for name, one in beside.items() if one}
    tried = {
        own.function_of(one.entry.method).rpartition(":")[2]: one
        for one in own.rows(TASK, results.read(path, Config))
    }
    rows |= {f"**`{name}`**": tried[name] for name in METHODS if name in tried}
    adamw = rows.get(f"`{table.REFERENCE}`")
    ordered = sorted(rows, key=lambda name: rows[name].losses.mean())
    text = lines(
        table.HEADINGS,
        [[name, *table.cells(rows[name], adamw)[1:]] for name in ordered],
    )
    left = [f"`{name}`" for name in METHODS if name not in tried]
    return text + (f"\n\nStill to run: {', '.join(left)}." if left else "")


REPORTS = {"equal_catalogue": lambda _: report()}
