"""The ablations as tables: a paper's order beside this study's."""

import math
import textwrap

from examples.study.bench.ablations import ABLATIONS
from examples.study.bench.ablations.form import Ablation, Variant
from examples.study.bench.markdown import lines
from examples.study.bench.search import LIMIT, Results, rate_at, tuning
from examples.study.bench.statistics import Row, difference, row

HEADINGS = "method", "paper", "loss", "ranked below", "behind by", "same order"
OURS = "method", "loss", "against", "difference"  # No paper has an order.
SAME, LEVEL, REVERSED = "yes", "level", "no"  # Whether an order is the paper's.


def report(results: Results) -> str:
    """All ablations, each with its source and its table."""
    return "\n\n".join(_one(ablation, results) for ablation in ABLATIONS)


def _one(ablation: Ablation, results: Results) -> str:
    """An ablation; methods whose runs are not finished have empty cells."""
    source = f" ({ablation.source})" if ablation.source else ""
    parts = [f"**{ablation.title}**{source}", _order(ablation, results)]
    if ablation.shows_rates:
        parts.append(_rates(ablation, results))
    if ablation.finding:
        parts.append("\n".join(textwrap.wrap(ablation.finding, 100)))
    return "\n\n".join(parts)


def _order(ablation, results):
    rows = {v.method: row(v.entry, results) for v in ablation.variants}
    cells = [_cells(v, rows) for v in ablation.variants]
    if ablation.source:
        return lines(HEADINGS, cells)
    return lines(OURS, [[name, *rest] for name, _, *rest, _ in cells])


def _cells(variant: Variant, rows: dict[str, Row | None]) -> list[str]:
    ours, better = rows[variant.method], variant.better
    loss = ""
    if ours:
        finite = math.isfinite(ours.loss)
        loss = f"{ours.loss:.4f} ± {ours.spread:.4f}" if finite else "failed"
    by = verdict = ""
    if better and ours and (theirs := rows[better]):
        by, verdict = compared(ours, theirs)
    behind = f"`{better}`" if better else ""
    return [f"`{variant.method}`", variant.figure, loss, behind, by, verdict]


def compared(ours: Row, better: Row) -> tuple[str, str]:
    """How far a method is behind one that a paper finds better, and what that means."""
    mean, half = difference(ours, better)
    if not math.isfinite(mean):  # The loss of a method with a failed run is infinite.
        if ours.loss == better.loss:
            return "failed", LEVEL
        return "failed", SAME if ours.loss > better.loss else REVERSED
    verdict = SAME if mean > half else REVERSED if mean < -half else LEVEL
    return f"{mean:+.4f} ± {half:.4f}", verdict


def _rates(ablation, results):
    """The loss of every trial, by learning rate."""
    entries = [variant.entry for variant in ablation.variants]
    tried = {entry: tuning(entry, results) for entry in entries}
    powers = [
        p for p in range(-LIMIT, LIMIT + 1) if any(p in t for t in tried.values())
    ]
    headings = ["method", *(f"{rate_at(entries[0], power):.2g}" for power in powers)]
    return lines(
        headings,
        [
            [f"`{e.method}`", *(_number(found.get(power)) for power in powers)]
            for e, found in tried.items()
        ],
    )


def _number(loss):
    if loss is None:
        return ""
    return f"{loss:.3f}" if math.isfinite(loss) else "failed"
