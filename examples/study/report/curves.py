"""Losses against steps, whole and second half, and the legend of all charts."""

from collections.abc import Iterator, Sequence

from examples.study.report.markup import Markup, joined, tag
from examples.study.report.section import SHOWN, Line, Section
from examples.study.report.svg import Chart, limits

COLOURS = 5  # In the style of the page; the next as many methods have dashes.


def charts(section: Section) -> Markup:
    """The legend of a section above its charts."""
    titles = dict.fromkeys(title for m in section.methods for title in m.lines)
    figures = [figure for title in titles for figure in _pair(section, title)]
    return joined(_legend(section), tag("div", *figures, class_="charts"))


def _swatch(section: Section, name: str) -> Markup:
    """A piece of a method's line."""
    path = tag("path", d="M2 6H26", class_=f"line {style(section, name)}")
    return tag("svg", path, viewBox="0 0 28 12", class_="swatch", aria_hidden="true")


def named(section: Section, name: str) -> Markup:
    """A method's name beside a piece of its line."""
    return tag("span", _swatch(section, name), tag("span", name), class_="named")


def style(section: Section, name: str) -> str:
    """The classes of a method's line."""
    if name == section.reference:
        return "reference"
    place = section.places.get(name)
    if place is None:
        return "other"
    dashes = " dashed" if place >= COLOURS else ""
    return f"c{place % COLOURS}{dashes}"


def _pair(section: Section, title: str) -> Iterator[Markup]:
    lines = {m.name: m.lines[title] for m in section.methods if title in m.lines}
    last = max(
        (line.steps[-1] for line in lines.values() if len(line.steps)), default=1
    )
    yield _figure(section, title, lines, (0, last))
    late = {step for line in lines.values() for step in line.steps if step >= last / 2}
    if len(late) > 2:
        yield _figure(section, f"{title}, second half", lines, (last / 2, last))


def _figure(section, title, lines, x):
    """A chart whose height is that of the lines in colour."""
    front = [name for name in lines if style(section, name) != "other"] or list(lines)
    chart = Chart(x, limits(_heights([lines[name] for name in front], x[0])))
    behind = [name for name in lines if name not in front]
    for name in (*behind, *reversed(front)):  # The best one lies on top.
        line, kind = lines[name], style(section, name)
        if line.low is not None and kind != "other":
            chart.band(line.steps, line.low, line.high, name, class_=f"band {kind}")
    for name in (*behind, *reversed(front)):
        kind = f"line {style(section, name)}"
        chart.line(lines[name].steps, lines[name].values, name, class_=kind)
    caption = tag("figcaption", title)
    label = f"{title} by step: {', '.join(front)}"
    return tag("figure", caption, chart.drawn(label))


def _heights(lines: Sequence[Line], start: float) -> Iterator[float]:
    for line in lines:
        for values in filter(
            lambda x: x is not None, (line.values, line.low, line.high)
        ):
            pairs = zip(line.steps, values, strict=True)
            yield from (y for x, y in pairs if x >= start)


def _legend(section: Section) -> Markup:
    shown = [m.name for m in section.methods if style(section, m.name) != "other"]
    items = [tag("li", named(section, name)) for name in shown]
    if rest := len(section.methods) - len(shown):
        line = tag("path", d="M2 6H26", class_="line other")
        grey = tag("svg", line, viewBox="0 0 28 12", class_="swatch")
        items.append(tag("li", tag("span", grey, f"{rest} more", class_="named")))
    about = "Point at a line to see its name."
    if rest:
        about += f" Grey: those after the best {SHOWN}, and those that diverged."
    if any(line.low is not None for m in section.methods for line in m.lines.values()):
        about += " Bands reach from the smallest to the largest loss over the seeds."
    return joined(tag("ul", *items, class_="legend"), tag("p", about, class_="small"))
