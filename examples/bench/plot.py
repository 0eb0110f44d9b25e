"""Curves of a study: loss against steps, and steps saved against AdamW's."""

import pathlib

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from examples.bench.search import Results
from examples.bench.statistics import Row, ranked, reference, speedups
from examples.bench.studies import STUDIES
from examples.bench.tasks import TASKS
from examples.pretrain.errors import UserError

SHOWN = 10  # Methods of a picture, AdamW beside them.


def draw(study: str, results: Results, path: pathlib.Path) -> None:
    """Draws the best methods of a study, and AdamW.

    Raises:
        UserError: If AdamW's runs are missing.
    """
    rows = ranked(STUDIES[study](), results)
    adamw = reference(rows)
    if adamw is None:
        raise UserError(f"{study}: AdamW's runs are missing; run the study first.")
    best = [row for row in rows if row is not adamw and np.isfinite(row.loss)][:SHOWN]
    figure = Figure(figsize=(12, 5), layout="constrained")
    losses, saved = figure.subplots(1, 2)
    for index, row in enumerate(best):
        style = {"color": colormaps["tab10"](index % 10), "linewidth": 1.5}
        losses.plot(row.steps, row.curve, label=_label(row), **style)
        saved.plot(adamw.steps[1:], speedups(row, adamw), **style)
    style = {"color": "black", "linewidth": 2.5}
    losses.plot(adamw.steps, adamw.curve, label=_label(adamw), **style)
    saved.axhline(1.0, **style)
    late = [
        curve for row in [*best, adamw] for curve in row.curve[len(row.curve) // 4 :]
    ]
    losses.set_ylim(min(late) - 0.02, max(late))
    losses.set_ylabel("validation loss")
    losses.set_xlabel("step")
    saved.set_xlabel("step of AdamW")
    saved.set_ylabel("AdamW's steps / the method's, to the same loss")
    for axes in (losses, saved):
        axes.grid(alpha=0.25)
    figure.suptitle(TASKS[adamw.entry.task].title)
    figure.legend(*losses.get_legend_handles_labels(), loc="outside right center")
    figure.savefig(path, dpi=110)


def _label(row: Row) -> str:
    own = " (own)" if row.entry.setting == "own" else ""
    return f"{row.entry.method}{own} {row.loss:.3f}"
