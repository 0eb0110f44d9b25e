"""The page: every section, and an overview if there are several."""

import pathlib
from collections.abc import Iterable, Mapping, Sequence

from examples.pretrain.directory import write_whole
from examples.study.report.curves import charts, named
from examples.study.report.layers import spectra, statistics
from examples.study.report.markup import Markup, joined, table, tag
from examples.study.report.section import Section
from examples.study.report.style import STYLE

Settings = Mapping[str, Mapping[str, str]]
# Settings in the line below the title, and those of them that need their name.
SUMMARY = ("data", "steps", "batch", "seeds", "versions", "python", "machine", "date")
COUNTS = ("steps", "batch", "seeds", "python")
LAYERS = (
    "Each chart is one kind of weight, with a line for each layer, also where layers "
    "are stacked in one array. Charts of the same measure have the same axes. Singular "
    "values are those of the first, the middle and the last layer, at up to six times; "
    "long runs are thinned to 200 points per line."
)
# These elements of HTML have no end tag.
HEAD = (
    '<meta charset="utf-8">'
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
)


def write(sections: Sequence[Section], path: pathlib.Path) -> None:
    """Writes a page that needs no other file.

    Raises:
        UserError: If the disk fails.
    """
    write_whole(path, page(sections))


def page(sections: Sequence[Section]) -> str:
    """The page as text."""
    title = sections[0].title if len(sections) == 1 else f"{len(sections)} comparisons"
    head = tag("head", Markup(HEAD), tag("title", title), tag("style", Markup(STYLE)))
    parts = [tag("h1", title)]
    if len(sections) > 1:
        parts.append(_overview(sections))
    for section in sections:
        if len(sections) > 1:
            parts.append(tag("h2", section.title))
        parts.append(_section(section))
    body = tag("body", tag("main", *parts))
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _section(section: Section) -> Markup:
    return joined(
        tag("p", tag("code", section.source), ": ", _summary(section), class_="small"),
        _settings(section.settings),
        tag("h3", "Loss"),
        charts(section),
        tag("h3", "Table"),
        _table(section),
        tag("h3", "How to read the table"),
        _pairs([section.columns[i] for i in _shown(section)]),
        _list(section.notes),
        *(_monitored(name, records) for name, records in section.monitors.items()),
    )


def _table(section: Section) -> Markup:
    shown = _shown(section)
    headings = ["optimizer", *(section.columns[i][0] for i in shown)]
    rows = [
        ((named(section, m.name), "long"), *(m.cells[i] for i in shown))
        for m in section.methods
    ]
    names = [m.name for m in section.methods]
    marked = {names.index(section.reference)} if section.reference else set()
    return table(headings, rows, marked, class_="methods")


def _shown(section: Section) -> list[int]:
    """The columns; those of a method alone are without dashes."""
    alone = section.methods[0].cells if len(section.methods) == 1 else ()
    every = range(len(section.columns))
    return [i for i in every if not alone or alone[i] != "-"]


def _pairs(pairs: Iterable[tuple[str, str]], **attributes: str) -> Markup:
    items = [joined(tag("dt", name), tag("dd", text)) for name, text in pairs]
    return tag("dl", *items, **attributes)


def _list(notes: Sequence[str]) -> Markup:
    return (
        tag("ul", *(tag("li", note) for note in notes), class_="notes")
        if notes
        else joined()
    )


def _common(settings: Settings) -> dict[str, str]:
    """The settings that are the same in all runs."""
    first, *others = settings.values()
    return {k: v for k, v in first.items() if all(o.get(k) == v for o in others)}


def _summary(section: Section) -> str:
    common = _common(section.settings)
    return "; ".join(
        f"{key} {common[key]}" if key in COUNTS else common[key]
        for key in SUMMARY
        if key in common
    )


def _settings(settings: Settings) -> Markup:
    """What is the same in all runs, and a table of the rest."""
    common = _common(settings)
    keys = dict.fromkeys(key for values in settings.values() for key in values)
    other = [key for key in keys if key not in common]
    rows = [[key, *(v.get(key, "-") for v in settings.values())] for key in other]
    shown = table(["setting", *settings], rows, class_="settings") if rows else ""
    summary = tag("summary", "What was run: all settings")
    details = tag("details", summary, _pairs(common.items(), class_="common"))
    return joined(details, shown)


def _overview(sections: Sequence[Section]) -> Markup:
    """Differences and speedups of every method in every section."""
    names = dict.fromkeys(m.name for section in sections for m in section.methods)
    found = [{m.name: m for m in section.methods} for section in sections]
    cell = lambda m: f"{m.difference}, {m.speedup}" if m else "not run"
    rows = [[(name, "long"), *(cell(f.get(name)) for f in found)] for name in names]
    text = "Loss minus AdamW's, then the speedup, as in the tables below."
    headings = ["optimizer", *(section.source for section in sections)]
    whole = table(headings, rows, class_="methods")
    return joined(tag("h2", "Overview"), tag("p", text, class_="small"), whole)


def _monitored(name: str, records: Sequence[Mapping]) -> Markup:
    return joined(
        tag("h3", "Layers of ", tag("code", name)),
        tag("p", LAYERS, class_="small"),
        statistics(records),
        spectra(records),
    )
