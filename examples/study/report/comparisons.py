"""Comparisons: what `python -m examples.study compare` wrote."""

import json
import math
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

from examples.pretrain.config import ModelConfig
from examples.pretrain.errors import UserError
from examples.study.compare import table
from examples.study.compare.comparison import Comparison
from examples.study.compare.plot import whole_runs
from examples.study.compare.protocol import REFERENCE, Curve, Row, at_best_learning_rate
from examples.study.report.section import Line, Method, Section, banded, flat

FILE = "results.json"
LOSS = "Validation loss (nats per token)"
COLUMNS = (
    (
        "loss",
        "Validation loss after the last step, median over seeds; lower is better.",
    ),
    ("spread", "Half of the way from the smallest to the largest loss over seeds."),
    ("difference", "Loss minus AdamW's; negative is better than AdamW."),
    (
        "speedup",
        "AdamW's steps divided by the first evaluated step at or below AdamW's final "
        "loss; 2 means half as many steps. A dash: that loss was not reached.",
    ),
    ("ms", "Median milliseconds per step on the machine above, without compilation."),
    ("state", "Memory of the optimizer's state."),
    ("learning rate", "Peak of the schedule; the best of those tried."),
    ("rates x seeds", "Learning rates tried, and runs at each of them."),
)


def section(directory: pathlib.Path) -> Section:
    """The comparison in a directory.

    Raises:
        UserError: If its file is damaged.
    """
    path = directory / FILE
    try:
        content = json.loads(path.read_bytes())
        plan = Comparison(
            **content["plan"] | {"model": ModelConfig(**content["plan"]["model"])}
        )
        rows = [Row(**row) for row in content["rows"]]
        curves = [Curve(**curve) for curve in content["curves"]]
    except (ValueError, TypeError, KeyError):
        raise UserError(
            f"{path} is not the result of a comparison, or it is damaged; repeat "
            "python -m examples.study compare."
        ) from None
    where = content.get("where", {"versions": "not recorded"})
    adamw = next((row for row in rows if row.optimizer == REFERENCE), None)
    methods = []
    for row in rows:
        group = [c for c in curves if c.optimizer == row.optimizer]
        lines = {LOSS: line(at_best_learning_rate(group))}
        methods.append(method(row.optimizer, row, adamw, lines))
    return Section(
        title=f"{len(rows)} optimizer{'s' * (len(rows) > 1)} on "
        f"{pathlib.Path(plan.data).name}, {plan.steps} steps",
        source=str(directory),
        settings={directory.name: flat(content["plan"] | where)},
        columns=COLUMNS,
        methods=methods,
        reference=adamw and adamw.optimizer,
        notes=table.notes(plan, rows),
    )


def line(group: Sequence[Curve]) -> Line:
    """Median and extremes of one optimizer's runs at one learning rate."""
    steps, losses = whole_runs(group)
    return banded(steps, np.median(losses, axis=0), losses)


def method(name: str, row: Row, adamw: Row | None, lines: Mapping[str, Line]) -> Method:
    """One row; the text table of `compare` has the same numbers."""
    is_other = adamw is not None and row is not adamw
    difference = row.loss - adamw.loss if is_other else math.nan
    difference = f"{difference:+.4f}" if math.isfinite(difference) else "-"
    speedup = "-" if row.speedup is None else f"{row.speedup:.2f}"
    loss, _, spread = table.loss(row).partition(" ±")
    cells = (
        loss,
        spread or "-",
        difference,
        speedup,
        f"{row.milliseconds:.1f}" if math.isfinite(row.milliseconds) else "-",
        table.size(row.state_bytes) if row.state_bytes else "-",
        f"{row.learning_rate:g}",
        f"{row.tried} x {row.seeds}",
    )
    return Method(name, row.loss, cells, difference, speedup, lines)
