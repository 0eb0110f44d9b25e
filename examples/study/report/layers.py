"""Monitored runs: a small chart for each kind of matrix, a line for each layer.

The same charts show update statistics against time, and singular values of the weights
with a line for each time.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from examples.study.report.markup import Markup, joined, tag
from examples.study.report.svg import Chart, limits

POINTS = 200  # Of a line.
TIMES = 6  # Spectra of a chart.
SMALL = (230, 170)
# From first to last; none too dark or too bright for any background.
SHADES = np.array([[47, 126, 216], [176, 82, 168], [226, 120, 30]])
# Measures by their names in the monitor; an angle reads better than a cosine.
ANGLE = "update_cosine"
TITLES = {
    "update_rms": "Root mean square of updates",
    "update_to_weight": "Norm of updates, relative to the norm of the weights",
    ANGLE: "Angle between successive updates, in degrees",
}
Series = dict[tuple[str, int], dict[int, Any]]  # (Kind, layer) to value by step.


def statistics(records: Sequence[Mapping]) -> Markup:
    """The measures of updates over time."""
    measures: dict[str, Series] = {}
    for record in _thinned(records, POINTS):
        for path, values in record["measures"].items():
            for measure, value in values.items():
                series = measures.setdefault(measure, {})
                _add(series, path, record["step"], value, is_stacked=np.ndim(value) > 0)
    order = [*TITLES, *(name for name in measures if name not in TITLES)]
    return joined(*(_measure(n, measures[n]) for n in order if n in measures))


def _measure(name, series):
    if name == ANGLE:
        series = {place: _degrees(values) for place, values in series.items()}
    shown = [v for values in series.values() for v in values.values() if v is not None]
    log = name != ANGLE and _is_wide(shown)
    name = TITLES.get(name, name)
    y, last = limits(shown, log), max(max(values) for values in series.values())
    figures = []
    for kind in dict.fromkeys(kind for kind, _ in series):
        layers = [layer for k, layer in series if k == kind]
        chart = Chart((0, last), y, log=log, size=SMALL)
        for layer in layers:
            points = series[kind, layer]
            title = f"layer {layer}" if len(layers) > 1 else kind
            ys = [float("nan") if v is None else v for v in points.values()]
            colour = shade(layer, max(layers))
            chart.line(list(points), ys, title, class_="line", style=colour)
        figures.append(_figure(kind, chart, f"{name} of {kind} by step"))
    deepest = max(layer for _, layer in series)
    return joined(
        tag("h4", name),
        _scale("layer 0", f"layer {deepest}") if deepest else "",
        tag("div", *figures, class_="panels"),
    )


def _degrees(cosines):
    angle = lambda x: None if x is None else math.degrees(math.acos(np.clip(x, -1, 1)))
    return {step: angle(x) for step, x in cosines.items()}


def spectra(records: Sequence[Mapping]) -> Markup:
    """The singular values of the weights: first, middle and last layer, by time."""
    series: Series = {}
    for record in _thinned([r for r in records if r.get("spectra")], TIMES):
        for path, values in record["spectra"].items():
            values = np.array(values, float)  # Null is NaN.
            stacked = values.ndim > 1
            _add(series, path, record["step"], values, is_stacked=stacked)
    if not series:
        return joined()
    steps = sorted({step for values in series.values() for step in values})
    every = [v for kept in series.values() for vs in kept.values() for v in vs]
    log = _is_wide(every)
    figures = []
    for kind in dict.fromkeys(kind for kind, _ in series):
        layers = [layer for k, layer in series if k == kind]
        for layer in _thinned(layers, 3):
            chart = Chart(
                (0, 1),
                limits(every, log),
                log=log,
                size=SMALL,
                xlabel="share that are larger",
            )
            for step, values in series[kind, layer].items():
                xs = np.linspace(0, 1, len(values))
                colour = shade(steps.index(step), len(steps) - 1)
                chart.line(xs, values, f"step {step}", class_="line", style=colour)
            title = f"{kind}, layer {layer}" if len(layers) > 1 else kind
            figures.append(_figure(title, chart, f"singular values of {title}"))
    return joined(
        tag("h4", "Singular values of the weights"),
        _scale(f"step {steps[0]}", f"step {steps[-1]}"),
        tag("div", *figures, class_="panels"),
    )


def place(path: str) -> tuple[str, int]:
    """Kind of a weight and its layer: layers/3/attn/q/kernel is (attn/q, 3)."""
    short = re.sub(r"/(kernel|embedding|scale)$", "", path)
    found = re.fullmatch(r"(?:.*/)?layers/(?:(\d+)/)?(.+)", short)
    return (found[2], int(found[1] or 0)) if found else (short, 0)


def shade(index: int, last: int) -> str:
    """A colour between those of the first and of the last line."""
    position = index / max(last, 1) * (len(SHADES) - 1)
    colour = [np.interp(position, range(len(SHADES)), c) for c in SHADES.T]
    return f"stroke:rgb({','.join(f'{c:.0f}' for c in colour)})"


def _add(series: Series, path, step, value, *, is_stacked):
    kind, first = place(path)
    for layer, one in enumerate(value if is_stacked else [value]):
        series.setdefault((kind, first + layer), {})[step] = one


def _is_wide(values: Iterable[float]) -> bool:
    """Whether values are better read on a logarithmic axis."""
    low, high = limits(values, log=True)
    return high > 10 * low


def _thinned(items: Sequence, count: int) -> list:
    """At most so many items, the first and the last among them."""
    if len(items) <= count:
        return list(items)
    places = np.linspace(0, len(items) - 1, count).round().astype(int)
    return [items[index] for index in places]


def _figure(title, chart, label):
    return tag("figure", tag("figcaption", title), chart.drawn(label))


def _scale(first: str, last: str) -> Markup:
    """The legend of a sequence of colours."""
    colours = ", ".join(shade(i, 4).removeprefix("stroke:") for i in range(5))
    bar = tag(
        "span", class_="bar", style=f"background:linear-gradient(90deg,{colours})"
    )
    return tag("p", first, " ", bar, " ", last, class_="small")
