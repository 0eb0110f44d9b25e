"""A study in three pictures: losses by step, steps saved, losses by learning rate.

A file says which runs it shows, so that it is drawn anew only when they change.
"""

import hashlib
import json
import pathlib

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from examples.pretrain.errors import UserError
from examples.study.bench import results
from examples.study.bench.comparison import NotYetError
from examples.study.bench.search import Results, is_finished
from examples.study.bench.statistics import Row, ranked, reference, speedups
from examples.study.bench.studies import STUDIES
from examples.study.bench.tasks import MAIN, TASKS
from examples.study.compare.styles import styles

SHOWN = 10  # Methods of a picture, AdamW beside them.
PICTURED = *MAIN, "large"
_RUNS = "runs"  # A text in the file: the fingerprint of what it shows.
_LOOK = 2  # Counts how pictures have looked; another number draws all of them anew.


def finished(study: str, found: Results) -> bool:
    """Whether a study has all of its runs, and its place in the report a picture."""
    if study not in PICTURED:
        return False
    try:
        return all(is_finished(e, found) for e in STUDIES[study](found))
    except NotYetError:
        return False


def file_of(study: str) -> pathlib.Path:
    """Where the picture of a study is kept."""
    return results.PATH.with_name(f"{study}.png")


def is_current(study: str, found: Results) -> bool:
    """Whether the file shows the runs that the study has now."""
    path = file_of(study)
    if not path.exists():
        return False
    with Image.open(path) as image:
        return image.info.get(_RUNS) == _fingerprint(shown(study, found))


def shown(study: str, found: Results) -> tuple[Row, list[Row]]:
    """AdamW's row, and those of the best methods.

    Raises:
        UserError: If it has no finished runs of AdamW.
    """
    entries = [e for e in STUDIES[study](found) if e.seeds]  # A search has none.
    rows = ranked(entries, found)
    adamw = reference(rows)
    if adamw is None:
        raise UserError(
            f"{study}: it has no finished runs of AdamW to compare with; if they are "
            f"only missing: python -m examples.study bench run {study}"
        )
    best = [row for row in rows if row is not adamw and np.isfinite(row.loss)]
    return adamw, best[:SHOWN]


def _fingerprint(rows):
    adamw, best = rows
    content = [_LOOK, *([_label(r), r.trials, [*r.curve]] for r in (adamw, *best))]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def draw(study: str, found: Results, path: pathlib.Path) -> None:
    """Draws the best methods of a study, and AdamW.

    Raises:
        UserError: If it has no finished runs of AdamW.
    """
    adamw, best = rows = shown(study, found)
    each = [*best, adamw]
    pairs = [*zip(each, styles([r.entry.method for r in each]), strict=True)]
    figure = Figure(figsize=(15, 5), layout="constrained")
    axes = figure.subplots(1, 3)
    for row, style in pairs:
        axes[0].plot(row.steps, row.curve, label=_label(row), **style)
        axes[1].plot(adamw.steps[1:], speedups(row, adamw), **style)
        if row.entry.setting != "own":
            rates = sorted(row.trials)
            axes[2].plot(rates, [row.trials[x] for x in rates], marker=".", **style)
    late = [x for row, _ in pairs for x in row.curve[len(row.curve) // 4 :]]
    axes[0].set(xlabel="step", ylabel="validation loss")
    axes[0].set_ylim(min(late) - 0.02, max(late))
    axes[1].set(
        xlabel="step of AdamW", ylabel="its steps / the method's, to the same loss"
    )
    axes[2].set(xlabel="learning rate (matched)", ylabel="loss of a trial")
    axes[2].set(xscale="log", ylim=axes[0].get_ylim())
    for one in axes:
        one.grid(alpha=0.25)
    figure.suptitle(TASKS[adamw.entry.task].title)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center")
    figure.savefig(path, dpi=90, metadata={_RUNS: _fingerprint(rows)})


def _label(row: Row) -> str:
    own = " (own)" if row.entry.setting == "own" else ""
    return f"{row.entry.method}{own} {row.loss:.3f}"
