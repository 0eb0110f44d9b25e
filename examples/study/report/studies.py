"""Studies of `bench`: the numbers of its tables, with curves."""

import math
import pathlib
from collections.abc import Mapping, Sequence

from examples.pretrain.errors import UserError
from examples.study.bench import results
from examples.study.bench.config import Config, Result
from examples.study.bench.statistics import Row, ranked, reference
from examples.study.bench.studies import STUDIES
from examples.study.bench.table import REPORTS, cells
from examples.study.bench.tasks import TASKS
from examples.study.report.section import (
    DIFFERENCE,
    SPEEDUP,
    SPREAD,
    STATE,
    Method,
    Section,
    banded,
)

PREFIX = "bench:"
LOSS = "Validation loss"
COLUMNS = (
    (
        "loss",
        "Loss on the whole validation set after the last step, mean over seeds; less "
        "is better.",
    ),
    SPREAD,
    DIFFERENCE,
    SPEEDUP,
    STATE,
    (
        "size",
        "Of updates. matched: AdamW's root mean square and weight decay; own: those of "
        "the method's paper.",
    ),
    ("rate", "Learning rate: the best of those tried with a seed of their own."),
    ("failed", "Runs that failed, of all, those that chose the rate included."),
)


def section(name: str, path: pathlib.Path | None) -> Section:
    """A study.

    Args:
        name: Its name with the prefix: ``bench:books``.
        path: The file of results; None for that of the repository.

    Raises:
        UserError: If there is no such study, or no row of it is finished.
    """
    study = name.removeprefix(PREFIX)
    known = [one for one in STUDIES if one not in REPORTS]
    if study not in known:
        raise UserError(
            f"There is no study {study!r} whose rows are methods; choose from "
            f"{', '.join(known)}."
        )
    path = path or results.PATH
    found = results.read(path)
    entries = STUDIES[study](found)
    rows = ranked(entries, found)
    if not rows:
        raise UserError(
            f"None of the {len(entries)} rows of {name} has all of its runs yet; run "
            f"python -m examples.study bench run {study}"
        )
    adamw = reference(rows)
    return Section(
        title=TASKS[rows[0].entry.task].title,
        source=name,
        settings={name: _settings(rows, results.origins(path))},
        columns=COLUMNS,
        methods=[_method(row, adamw, found) for row in rows],
        reference=adamw and _name(adamw),
        notes=_notes(len(entries) - len(rows), len(entries)),
    )


def _name(row: Row) -> str:
    return row.entry.method + (" (own)" if row.entry.setting == "own" else "")


def _configs(row: Row) -> list[Config]:
    """The runs of which the row is made."""
    return [row.entry.config(row.rate, seed) for seed in row.entry.seeds]


def _method(row: Row, adamw: Row | None, found: Mapping[Config, Result]) -> Method:
    _, size, rate, loss, difference, speedup, state, failed = cells(row, adamw)
    loss, _, spread = loss.partition(" ± ")
    loss = loss if math.isfinite(row.loss) else "failed"
    runs = [found[config] for config in _configs(row)]
    curves = [[y for _, y in run.curve] for run in runs if run.loss is not None]
    return Method(
        name=_name(row),
        loss=row.loss,
        cells=(
            *(loss, spread or "-", difference, speedup),
            *(state, size, rate, failed),
        ),
        difference=difference,
        speedup=speedup,
        lines={LOSS: banded(row.steps, row.curve, curves)} if curves else {},
    )


def _settings(rows: Sequence[Row], origins: Mapping[Config, Mapping[str, str]]):
    """What all runs have in common, and where they ran."""
    configs = [config for row in rows for config in _configs(row)]
    different = lambda values: "; ".join(dict.fromkeys(str(v) for v in values))
    ran = [origins[config] for config in configs]
    keys = dict.fromkeys(key for origin in ran for key in origin)
    return {
        "task": different(config.task for config in configs),
        "steps": different(config.steps for config in configs),
        "batch": different(config.batch for config in configs),
        "seeds": ", ".join(map(str, rows[0].entry.seeds)),
        **{key: different(x[key] for x in ran if key in x) for key in keys},
    }


def _notes(left: int, count: int) -> list[str]:
    notes = [
        "Curves are means over seeds, on an eighth of the validation set; the table "
        "has the loss on all of it."
    ]
    if left:
        notes.append(f"{left} of {count} rows do not have all of their runs yet.")
    return notes
