"""Charts as SVG: axes with ticks, lines and bands, in the colours of the page."""

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

from matplotlib.ticker import LogLocator, MaxNLocator

from examples.study.report.markup import Markup, tag

LEFT, RIGHT, TOP, BOTTOM = 50, 20, 10, 38
MARGIN = 0.03  # Of the height.


class Chart:
    """A rectangle with axes; what is added first lies behind.

    Args:
        x: Smallest and largest x.
        y: Smallest and largest y.
        log: Whether y is logarithmic.
        xlabel: Text below the axis.
        size: Width and height in units of the drawing, which fills its column.
    """

    def __init__(
        self,
        x: tuple[float, float],
        y: tuple[float, float],
        *,
        log: bool = False,
        xlabel: str = "step",
        size: tuple[int, int] = (460, 290),
    ):
        self._log, self._xlabel = log, xlabel
        self._x, self._y = x if x[0] < x[1] else _wide(x, False), _wide(y, log)
        self._right, self._bottom = size[0] - RIGHT, size[1] - BOTTOM
        self._size = size
        self._parts: list[Markup] = []

    def line(self, xs, ys, title: str = "", **style: Any) -> None:
        """Adds a line; it is interrupted where a value cannot be drawn."""
        pairs = zip(xs, ys, strict=True)
        for fine, run in itertools.groupby(pairs, lambda pair: self._is_drawn(pair[1])):
            if fine:
                points = self._points(run)
                path = f"M{points}" + ("" if "L" in points else "h0")  # A round dot.
                self._add(path, title, fill="none", **style)

    def band(self, xs, low, high, title: str = "", **style: Any) -> None:
        """Fills between two lines, where both can be drawn."""
        triples = [
            (x, a, b)
            for x, a, b in zip(xs, low, high, strict=True)
            if self._is_drawn(a) and self._is_drawn(b)
        ]
        if triples:
            there = [(x, b) for x, _, b in triples]
            back = [(x, a) for x, a, _ in reversed(triples)]
            path = f"M{self._points(there + back)}Z"
            self._add(path, title, stroke="none", **style)

    def drawn(self, label: str) -> Markup:
        """The chart.

        Args:
            label: What it shows, for those who cannot see it.
        """
        width, height = self._right - LEFT, self._bottom - TOP
        box = {"x": LEFT, "y": TOP, "width": width, "height": height}
        view = f"{LEFT} {TOP} {width} {height}"
        inside = tag("svg", *self._parts, viewBox=view, **box)  # It cuts off the rest.
        whole = f"0 0 {self._size[0]} {self._size[1]}"
        return tag(
            "svg", *self._axes(), inside, viewBox=whole, role="img", aria_label=label
        )

    def _axes(self) -> Iterable[Markup]:
        for value in _ticks(self._x, self._size[0] // 75):
            x = round(self._across(value), 1)
            yield tag("path", d=f"M{x} {TOP}V{self._bottom}", class_="grid")
            yield tag("text", _number(value), x=x, y=self._bottom + 16, class_="below")
        for value in _ticks(self._y, self._size[1] // 40, self._log):
            y = round(self._up(value), 1)
            yield tag("path", d=f"M{LEFT} {y}H{self._right}", class_="grid")
            yield tag("text", _number(value), x=LEFT - 6, y=y + 4, class_="beside")
        middle, last = (LEFT + self._right) / 2, self._size[1] - 5
        yield tag("text", self._xlabel, x=middle, y=last, class_="below")

    def _add(self, path, title, **style):
        label = (tag("title", title),) if title else ()
        self._parts.append(tag("path", *label, d=path, **style))

    def _is_drawn(self, y):
        return math.isfinite(y) and (y > 0 or not self._log)

    def _points(self, pairs):
        return "L".join(f"{self._across(x):.1f} {self._up(y):.1f}" for x, y in pairs)

    def _across(self, x):
        low, high = self._x
        return LEFT + (x - low) / (high - low) * (self._right - LEFT)

    def _up(self, y):
        low, high = self._y
        if self._log:
            low, high, y = math.log(low), math.log(high), math.log(y)
        return self._bottom - (y - low) / (high - low) * (self._bottom - TOP)


def _number(value: float) -> str:
    """A number in few letters: 3e-4 for 0.0003."""
    if not 0 < abs(value) < 1e-3:
        return f"{value:g}"
    digits, _, power = f"{value:e}".partition("e")
    return f"{float(digits):g}e{int(power)}"


def limits(values: Iterable[float], log: bool = False) -> tuple[float, float]:
    """The smallest and largest value that can be drawn."""
    found = [v for v in values if math.isfinite(v) and (v > 0 or not log)]
    return (min(found), max(found)) if found else (1.0, 2.0)


def _wide(pair: tuple[float, float], log: bool) -> tuple[float, float]:
    """Limits with some space around."""
    low, high = pair
    if log:
        factor = max((high / low) ** MARGIN, 1.05)
        return low / factor, high * factor
    tiny = 1e-6 * max(abs(low), abs(high), 1e-6)
    margin = MARGIN * (high - low) if high - low > tiny else 0.5
    return low - margin, high + margin


def _ticks(pair: tuple[float, float], count: int, log: bool = False) -> Sequence[float]:
    """Round values between two limits, about so many."""
    inside = lambda values: [float(v) for v in values if pair[0] <= v <= pair[1]]
    if log:
        for subs in ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0)):
            found = inside(LogLocator(subs=subs, numticks=6).tick_values(*pair))
            if len(found) > 2:
                return found
    return inside(MaxNLocator(count, steps=[1, 2, 2.5, 5, 10]).tick_values(*pair))
