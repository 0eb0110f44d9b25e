"""Tables in Markdown."""

import math
import pathlib

import numpy as np

from examples.study.bench import results, statistics
from examples.study.bench.markdown import lines
from examples.study.bench.missing import MissingError
from examples.study.reinforce import protocol
from examples.study.reinforce.methods import METHODS
from examples.study.reinforce.protocol import (
    Config,
    Entry,
    Outcome,
    Results,
    due,
)

PATH = pathlib.Path(__file__).parents[1] / "results" / "reinforce.jsonl"
DIGITS = {"sums": 3, "pendulum": 1}  # Of returns.
HEADINGS = (
    *("method", "rate", "return, second half", "against AdamW"),
    *("return at the end", "against AdamW", "entropy", "divergence"),
)
LATER = "No row has all of its runs yet."


def read(path: pathlib.Path = PATH) -> Results:
    """The runs of a file."""
    return results.read(path, Config, Outcome)


def rows_of(task: str, found: Results) -> dict[str, dict[Config, Outcome]]:
    """The finished rows of a task, largest score first; failed ones last."""
    entries = [Entry(task, method) for method in METHODS]
    rows = {
        entry.method: protocol.confirmed(entry, found)
        for entry in entries
        if not due(entry, found)
    }
    mean = lambda method: scores(rows[method]).mean()
    return {method: rows[method] for method in sorted(rows, key=mean, reverse=True)}


def reference(task: str, found: Results) -> str | None:
    """The better AdamW; None while it is not known or its row is not finished."""
    try:
        name = protocol.reference(task, found).method
    except MissingError:
        return None
    return None if due(Entry(task, name), found) else name


def scores(runs: dict[Config, Outcome]) -> np.ndarray:
    """Mean return in the second half, by seed; minus infinity for a failed run."""
    values = [outcome.score for outcome in runs.values()]
    return np.array([-math.inf if x is None else x for x in values])


def last(runs: dict[Config, Outcome]) -> np.ndarray:
    """Return after the last step, by seed; minus infinity for a failed run."""
    is_whole = np.isfinite(scores(runs))
    ends = [outcome.curve[-1][1] for outcome in runs.values()]
    return np.where(is_whole, ends, -math.inf)


def curves(runs: dict[Config, Outcome]) -> np.ndarray:
    """Curves ``(seeds, points, columns)`` of the runs that did not fail."""
    whole = [o.curve for o in runs.values() if o.score is not None]
    return np.array(whole)


def table(task: str, found: Results) -> str:
    """The rows of a task, largest return first."""
    rows, adamw = rows_of(task, found), reference(task, found)
    if not rows:
        return LATER
    cells = [_cells(task, name, rows[name], rows.get(adamw or "")) for name in rows]
    text = lines(HEADINGS, cells)
    if count := len(METHODS) - len(rows):
        text += f"\n\n{count} of {len(METHODS)} rows do not have all of their runs yet."
    return text


def _cells(task, method, runs, adamw):
    digits, is_adamw = DIGITS[task], runs is adamw
    cells = [f"`{method}`", f"{next(iter(runs)).rate:.3g}"]
    for measure in (scores, last):
        ours = measure(runs)
        if not np.isfinite(ours).all():
            cells += ["failed", ""]
            continue
        cells.append(f"{ours.mean():.{digits}f} ± {ours.std(ddof=1):.{digits}f}")
        is_other = adamw is not None and not is_adamw
        cells.append(_difference(ours - measure(adamw), digits) if is_other else "")
    whole = curves(runs)
    if not len(whole):
        return [*cells, "", ""]
    # At the end, the entropy; the divergence as well, or its mean over rounds.
    away = whole[:, -1, 3] if task == "sums" else whole[:, 1:, 3].mean(1)
    return [*cells, f"{whole[:, -1, 2].mean():.3f}", f"{away.mean():.3g}"]


def _difference(parts, digits):
    mean, half = statistics.paired(parts)
    return f"{mean:+.{digits}f} ± {half:.{digits}f}" if math.isfinite(mean) else ""


def rates(task: str, found: Results) -> str:
    """What every method tried: mean score of the tuning seeds by rate."""
    tried: dict[str, dict[float, list[float]]] = {}
    for config, outcome in found.items():
        if config.task == task and config.seed in protocol.TUNING:
            of_rate = tried.setdefault(config.method, {}).setdefault(config.rate, [])
            of_rate.append(-math.inf if outcome.score is None else outcome.score)
    whole = {
        method: {r: np.mean(x) for r, x in of.items() if len(x) == len(protocol.TUNING)}
        for method, of in tried.items()
    }
    every = sorted({rate for of in whole.values() for rate in of})
    if not every:
        return "No rate has all of its runs yet."
    digits = DIGITS[task]
    shown = lambda x: f"{x:.{digits}f}" if math.isfinite(x) else "failed"
    cells = [
        [f"`{m}`", *(shown(whole[m][r]) if r in whole[m] else "" for r in every)]
        for m in METHODS
        if m in whole
    ]
    return lines(("method", *(f"{rate:.3g}" for rate in every)), cells)
