"""Tables in Markdown."""

import math
import pathlib
from functools import partial

import numpy as np

from examples.study.bench import results, statistics
from examples.study.bench.markdown import lines
from examples.study.posttrain import protocol
from examples.study.posttrain.changes import CHANGES
from examples.study.posttrain.protocol import (
    BASES,
    METHODS,
    Config,
    Entry,
    Outcome,
    Results,
    due,
)

PATH = pathlib.Path(__file__).parents[1] / "results" / "posttrain.jsonl"
REFERENCE = "adamw"
HEADINGS = (
    *("method", "loss", "against AdamW", "old loss", "against AdamW"),
    *("multiple", "stable rank", "cosine", "size"),
)


def read(path: pathlib.Path = PATH) -> Results:
    """The runs of a file."""
    return results.read(path, Config, Outcome)


def table(change: str, base: str, few: bool, found: Results) -> str:
    """The rows of a base with many steps or few, smallest loss first."""
    rows = {}
    for method in METHODS:
        entry = Entry(change, base, method, few)
        if not due(entry, found):
            rows[method] = protocol.confirmed(entry, found)
    if not rows:
        return f"None of the {len(METHODS)} rows has all of its runs yet."
    losses = {method: _column("loss", runs) for method, runs in rows.items()}
    order = sorted(rows, key=lambda method: losses[method].mean())
    cells = [_cells(method, rows[method], rows.get(REFERENCE)) for method in order]
    text = lines(HEADINGS, cells)
    if left := len(METHODS) - len(rows):
        text += f"\n\n{left} of {len(METHODS)} rows do not have all of their runs yet."
    return text


def _column(name, runs):
    values = [getattr(outcome, name) for outcome in runs.values()]
    return np.array([math.inf if x is None else x for x in values])


def _cells(method, runs, adamw):
    shown = [f"`{method}`"]
    for name in ("loss", "old"):
        ours = _column(name, runs)
        if not np.isfinite(ours).all():
            shown += ["failed", ""]
            continue
        shown.append(f"{ours.mean():.4f} ± {ours.std(ddof=1):.4f}")
        is_other = adamw is not None and method != REFERENCE
        shown.append(_difference(ours - _column(name, adamw)) if is_other else "")
    shown.append(f"{next(iter(runs)).multiple:.3g}")
    for name in ("stable_rank", "cosine", "size"):
        mean = _column(name, runs).mean()
        shown.append(f"{mean:.3g}" if math.isfinite(mean) else "")
    return shown


def _difference(parts):
    mean, half = statistics.paired(parts)
    return f"{mean:+.4f} ± {half:.4f}" if math.isfinite(mean) else ""


def _reports():
    for change in CHANGES:
        for base in BASES:
            for few in (False, True):
                name = f"posttrain_{change}_{base}_{'few' if few else 'many'}"
                yield name, partial(table, change, base, few)


REPORTS = {name: lambda _, made=made: made(read()) for name, made in _reports()}
