"""Charts of the committed runs, as SVG in the page: no file, no script."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import runs

from examples.study.bench.statistics import Row
from examples.study.equal import statistics as equal
from examples.study.report.markup import Markup, joined, tag
from examples.study.report.svg import Chart
from optax_matrix.diagnostics import method_style

FROM = 0.25  # The share of the steps that is left out: losses fall too far there.
FLOOR = 1e-3  # Of relative singular values; smaller ones are below the chart.
_SIZE = (300, 230)


class Line(NamedTuple):
    """A line of a chart, and what the legend says of it.

    Its style is ``reference``, ``reference dashed``, or the name of a method, whose
    color it has in every figure.
    """

    label: str
    xs: Sequence[float]
    ys: Sequence[float]
    style: str

    def look(self) -> dict[str, str]:
        """Attributes of its path."""
        if self.style.startswith("reference"):
            return {"class_": f"line {self.style}"}
        color = method_style(self.style)["color"]
        return {"class_": "line method", "style": f"--method: {color}"}


def against_tuned(method: str) -> str:
    """A chart for each task of equal budgets; may be empty."""
    return _side_by_side(
        _pair(task, *found) for task, found in runs.equal_rows(method).items()
    )


def _pair(task: str, ours: equal.Row, adamw: equal.Row) -> Markup:
    rows = {"adamw, tuned": (adamw, "reference"), ours.entry.method: (ours, None)}
    lines = [
        Line(
            f"{name} {row.losses.mean():.3f}",
            row.steps.tolist(),
            row.curves.mean(0).tolist(),
            style or ours.entry.method,
        )
        for name, (row, style) in rows.items()
    ]
    what = f"Test loss on {task} by step: " + "; ".join(
        f"{name} ends at {row.curves.mean(0)[-1]:.3f}"
        for name, (row, _) in rows.items()
    )
    return _figure(task, _chart(lines), lines, what)


def _chart(lines: Sequence[Line]) -> Chart:
    """Axes for losses by step, whose height is that of the later steps."""
    late = [
        loss
        for line in lines
        for step, loss in zip(line.xs, line.ys, strict=True)
        if step >= FROM * line.xs[-1]
    ]
    return Chart((0, lines[-1].xs[-1]), (min(late), max(late)), size=_SIZE)


def curves(method: str) -> str:
    """A chart for each task: the method, AdamW and the tuned AdamW; may be empty."""
    return _side_by_side(
        _losses(task, method, found)
        for task, found in runs.of_method(method).items()
        if len(found.curve)
    )


def _losses(task: str, method: str, found: Row) -> Markup:
    rows = [("adamw", runs.adamw(task), "reference")]
    if task != "shakespeare":
        rows.append(("adamw, tuned", runs.adamw(task, "tuned"), "reference dashed"))
    rows.append((method, found, method))
    lines = [
        Line(f"{title} {row.loss:.3f}", row.steps, row.curve, style)
        for title, row, style in rows
    ]
    what = f"Validation loss on {task} by step: " + "; ".join(
        f"{title} ends at {row.curve[-1]:.3f}" for title, row, _ in rows
    )
    return _figure(task, _chart(lines), lines, what)


def spectra(method: str) -> str:
    """Charts of singular values: of an update, of all together, of the weights."""
    ours, adamw = runs.spectra()[method].spectra, runs.spectra()["adamw"].spectra
    update = {
        "gradient": (ours.gradient, "reference dashed"),
        "adamw": (adamw.update, "reference"),
        method: (ours.update, method),
    }
    change = {"adamw": (adamw.change, "reference"), method: (ours.change, method)}
    weights = {
        "before training": (ours.first, "reference dashed"),
        "after training": (ours.last, method),
    }
    relative = {"y": (FLOOR, 1.0), "log": True}
    absolute = {"y": (0.0, max(ours.first[0], ours.last[0]))}
    return _side_by_side(
        [
            _values("last update", update, **relative),
            _values("change of the weights", change, **relative),
            _values("weights", weights, **absolute),
        ]
    )


def _values(title: str, given: dict[str, tuple[list[float], str]], **axis) -> Markup:
    """Singular values against their number."""
    lines = [
        Line(label, range(1, len(values) + 1), values, style)
        for label, (values, style) in given.items()
    ]
    count = len(lines[0].ys)
    chart = Chart((1, count), **axis, xlabel="number, largest first", size=_SIZE)
    half = count // 2
    what = f"Singular values, {title}; number {half} of {count}: " + ", ".join(
        f"{line.label} {line.ys[half - 1]:.2g}" for line in lines
    )
    return _figure(title, chart, lines, what)


def _side_by_side(figures: Iterable[Markup]) -> str:
    found = list(figures)
    return tag("div", *found, class_="charts") if found else ""


def _figure(title: str, chart: Chart, lines: Sequence[Line], what: str) -> Markup:
    """A chart with its lines and legend; ``what`` is for those who cannot see it."""
    for line in lines:
        chart.line(line.xs, line.ys, line.label, **line.look())
    legend = [tag("li", _swatch(line), line.label) for line in lines]
    caption = tag("figcaption", title, tag("ul", *legend, class_="legend"))
    return tag("figure", chart.drawn(what), caption, class_="chart")


def _swatch(line: Line) -> Markup:
    path = tag("path", d="M0 6H28", **line.look())
    drawn = tag("svg", path, viewBox="0 0 28 12", class_="swatch", aria_hidden="true")
    return joined(drawn, " ")
