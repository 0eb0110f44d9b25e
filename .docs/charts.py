"""Loss curves of the committed runs, as SVG in the page: no file, no script."""

import runs

from examples.study.bench.statistics import Row
from examples.study.report.markup import Markup, joined, tag
from examples.study.report.svg import Chart

FROM = 0.25  # The share of the steps that is left out: losses fall too far there.
_SIZE = (300, 230)


def curves(method: str) -> str:
    """A chart for each task: the method, AdamW and the tuned AdamW; may be empty."""
    figures = [
        _figure(task, method, found)
        for task, found in runs.of_method(method).items()
        if len(found.curve)
    ]
    return tag("div", *figures, class_="charts") if figures else ""


def _figure(task: str, method: str, found: Row) -> Markup:
    lines = [("adamw", runs.adamw(task), "reference")]
    if task != "shakespeare":
        lines.append(("adamw, tuned", runs.adamw(task, "tuned"), "reference dashed"))
    lines.append((method, found, "c0"))
    late = [
        loss
        for _, row, _ in lines
        for step, loss in zip(row.steps, row.curve, strict=True)
        if step >= FROM * row.steps[-1]
    ]
    chart = Chart((0, found.steps[-1]), (min(late), max(late)), size=_SIZE)
    for title, row, style in lines:
        chart.line(row.steps, row.curve, title, class_=f"line {style}")
    what = f"Validation loss on {task} by step: " + "; ".join(
        f"{title} ends at {row.curve[-1]:.3f}" for title, row, _ in lines
    )
    legend = [
        tag("li", _swatch(style), f"{title} {row.loss:.3f}")
        for title, row, style in lines
    ]
    caption = tag("figcaption", task, tag("ul", *legend, class_="legend"))
    return tag("figure", chart.drawn(what), caption, class_="chart")


def _swatch(style: str) -> Markup:
    line = tag("path", d="M0 6H28", class_=f"line {style}")
    drawn = tag("svg", line, viewBox="0 0 28 12", class_="swatch", aria_hidden="true")
    return joined(drawn, " ")
