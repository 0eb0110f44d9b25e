"""Tasks of the comparison with equal budgets, with the functions of a user."""

import dataclasses
import math
import pathlib
from collections.abc import Mapping

import numpy as np

from examples.pretrain.errors import UserError
from examples.study.bench import results
from examples.study.bench.tasks import TASKS
from examples.study.equal import own
from examples.study.equal.config import PATH, SEEDS, Config
from examples.study.equal.protocol import LENGTHS
from examples.study.equal.statistics import Row
from examples.study.equal.table import REFERENCE, cells, rows_of
from examples.study.report.section import (
    DIFFERENCE,
    SPEEDUP,
    SPREAD,
    STATE,
    Method,
    Section,
    banded,
)

PREFIX = "equal:"
LOSS = "Test loss"
COLUMNS = (
    ("loss", "Loss on the test set after the last step, mean over seeds."),
    SPREAD,
    DIFFERENCE,
    SPEEDUP,
    ("interval", "95% interval of the speedup, by the bootstrap over seeds."),
    STATE,
    ("settings", "Rate, warm-up, b1, b2 and weight decay of the matrices."),
)


def section(name: str, path: pathlib.Path | None) -> Section:
    """A task.

    Args:
        name: Its name with the prefix: ``equal:books``.
        path: The file of a user's runs; None for the committed runs alone.

    Raises:
        UserError: If there is no such task, or no row of it is finished.
    """
    task = name.removeprefix(PREFIX)
    if task not in LENGTHS:
        raise UserError(f"There is no task {task!r}; choose from {', '.join(LENGTHS)}.")
    found = own.read(path or PATH)
    rows = rows_of(task, 1, found)
    if not rows:
        raise UserError(
            f"No row of {name} has all of its runs yet; run "
            f"python -m examples.study equal run {task}"
        )
    adamw = next((row for row in rows if row.entry.method == REFERENCE), None)
    origins = results.origins(PATH, Config) | results.origins(path or PATH, Config)
    return Section(
        title=f"{TASKS[task].title}, equal budgets",
        source=name,
        settings={name: _settings(rows, origins)},
        columns=COLUMNS,
        methods=[_method(row, adamw) for row in rows],
        reference=adamw and REFERENCE,
        notes=[
            "Every method tried the same 16 points of its settings, on two seeds and "
            "the validation set; five other seeds and the test set made the table.",
            "Curves are means over seeds, on about a seventh of the test set.",
        ],
    )


def _method(row: Row, adamw: Row | None) -> Method:
    _, loss, difference, speedup, interval, _, _, state = cells(row, adamw)
    loss, _, spread = loss.partition(" ± ")
    c = row.config
    given = c.rate, c.warm_up, c.b1, c.b2, c.decay
    settings = ", ".join("-" if x is None else f"{x:.3g}" for x in given)
    finite = [curve for curve in row.curves if np.isfinite(curve).all()]
    lines = {LOSS: banded(row.steps, np.mean(finite, 0), finite)} if finite else {}
    return Method(
        name=row.entry.method or REFERENCE,
        loss=float(row.losses.mean()) if np.isfinite(row.losses).all() else math.inf,
        cells=(
            *(loss, spread or "-", difference or "-", speedup or "-"),
            *(interval or "-", state, settings),
        ),
        difference=difference or "-",
        speedup=speedup or "-",
        lines=lines,
    )


def _settings(rows: list[Row], origins: Mapping[Config, Mapping[str, str]]):
    """What all runs have in common, and where they ran."""
    finals = {dataclasses.replace(row.config, seed=s) for row in rows for s in SEEDS}
    ran = [origin for config, origin in origins.items() if config in finals]
    different = lambda values: "; ".join(dict.fromkeys(map(str, values)))
    keys = dict.fromkeys(key for origin in ran for key in origin)
    return {
        "task": str(rows[0].entry.task),
        "steps": str(rows[0].config.steps),
        "seeds": ", ".join(map(str, SEEDS)),
        **{key: different(x[key] for x in ran if key in x) for key in keys},
    }
