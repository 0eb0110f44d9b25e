"""Tables in Markdown, and their places in the pages of the study and the README."""

import math
import pathlib
import re
from collections.abc import Sequence
from functools import partial

from examples import few_bits
from examples.study.bench import (
    ablation_table,
    bf16,
    cost_table,
    orders,
    overall_table,
    plot,
    rates_table,
    search_table,
    summary_table,
    times,
    verdict_table,
)
from examples.study.bench.comparison import NotYetError
from examples.study.bench.markdown import lines
from examples.study.bench.results import PATH, origins
from examples.study.bench.search import Results
from examples.study.bench.statistics import Row, difference, ranked, reference, steps_to
from examples.study.bench.studies import STUDIES
from examples.study.benchmarks import poet_merges
from examples.study.compare.table import size
from examples.study.equal import (
    catalogue as equal_catalogue,
    front,
    plot as equal_plot,
    table as equal_table,
)
from examples.study.posttrain import table as posttrain_table
from examples.study.reinforce import plot as reinforce_plot, table as reinforce_table
from examples.study.transfer import table as transfer_table
from examples.study.unseen import table as unseen_table

STUDY = pathlib.Path(__file__).parents[1]
PAGES = *sorted(STUDY.glob("pages/*.md")), STUDY.parents[1] / "README.md"
HEADINGS = (
    "method",
    "setting",
    "rate",
    "loss",
    "against AdamW",
    "speedup",
    "state",
    "failed",
)
REPORTS = {
    "ablations": ablation_table.report,
    "bf16": bf16.report,
    "few_bits": lambda _: few_bits.table(),
    "overall": overall_table.report,
    "poet_merges": lambda _: poet_merges.table(poet_merges.read(poet_merges.PATH)),
    "orders": orders.counts,
    "reversals": partial(orders.report, ablation_table.REVERSED),
    "levels": partial(orders.report, ablation_table.LEVEL),
    "rates": rates_table.report,
    "decays": rates_table.decays,
    "search": search_table.report,
    "summary": summary_table.report,
    "times": lambda _: times.table(times.read()),
    "verdict": verdict_table.report,
    **equal_catalogue.REPORTS,
    **equal_table.REPORTS,
    **posttrain_table.REPORTS,
    **reinforce_plot.REPORTS,
    **front.REPORTS,
    **transfer_table.REPORTS,
    **unseen_table.REPORTS,
}
NAMES = {*STUDIES, *REPORTS, "cost"}


def table(study: str, results: Results, path: pathlib.Path = PATH) -> str:
    """The table of a study, smallest loss first; some have reports of their own.

    The results are those in the file at `path`, which also has the command of each.
    """
    if study == "cost":
        return cost_table.report(results, origins(path))
    try:
        if study in REPORTS:
            return REPORTS[study](results)
        entries = STUDIES[study](results)
    except NotYetError:
        return "This study waits for the end of another one."
    text = table_of(ranked(entries, results), len(entries))
    if plot.finished(study, results):
        picture = f"../results/{plot.file_of(study).name}"
        text += f"\n\n![Losses by step, steps saved, losses by rate]({picture})"
    return text


def table_of(rows: Sequence[Row], count: int) -> str:
    """The table of some rows out of a number of entries."""
    if not count:
        return "No chain is left for this study."
    if not rows:
        return f"None of the {count} rows has all of its runs yet."
    text = lines(HEADINGS, [cells(row, reference(rows)) for row in rows])
    if left := count - len(rows):
        text += f"\n\n{left} of {count} rows do not have all of their runs yet."
    return text


def cells(row: Row, adamw: Row | None) -> list[str]:
    """A row of the table, as text."""
    name = f"`{row.entry.method}`"
    loss = "-"
    if math.isfinite(row.loss):
        loss = f"{row.loss:.4f} ± {row.spread:.4f}"
    runs = len(row.losses) + len(row.trials)
    return [
        name,
        row.entry.setting,
        f"{row.rate:.2g}",
        loss,
        *against(row, adamw),
        size(row.state_bytes),
        f"{row.failed} of {runs}",
    ]


def against(row: Row, adamw: Row | None) -> list[str]:
    """Difference of loss to AdamW, and AdamW's steps over the method's."""
    if adamw is None:
        return ["", ""]
    if row is adamw:
        return ["-", "1.00"]
    mean, half = difference(row, adamw)
    if not math.isfinite(mean):
        return ["-", "-"]
    steps = steps_to(row, adamw.curve[-1])
    speedup = f"{adamw.steps[-1] / steps:.2f}" if math.isfinite(steps) else "-"
    return [f"{mean:+.4f} ± {half:.4f}", speedup]


def replaced(text: str, results: Results, path: pathlib.Path = PATH) -> str:
    """A text with the table of every study between its two marks."""

    def new(match):
        mark, study = match[1], match[2]
        return f"{mark}\n{table(study, results, path)}\n<!-- /bench -->"

    return re.sub(r"(<!-- bench: (\w+) -->)\n.*?<!-- /bench -->", new, text, flags=re.S)


def write(results: Results, path: pathlib.Path = PATH) -> None:
    """Writes the tables into the pages that have places for them, and the pictures."""
    for page in PAGES:
        page.write_text(replaced(page.read_text(), results, path))
    for study in plot.PICTURED:
        if plot.finished(study, results) and not plot.is_current(study, results):
            plot.draw(study, results, plot.file_of(study))
    equal_plot.refresh(equal_table.read())
    front.refresh(equal_table.read())
    reinforce_plot.refresh(reinforce_table.read())
