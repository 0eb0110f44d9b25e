"""HTML and SVG elements: tags are balanced, and text is escaped."""

import html
from typing import Any


class Markup(str):
    """Text that is markup; any other text is escaped."""

    __slots__ = ()


def text(content: Any) -> Markup:
    """Content as markup."""
    if isinstance(content, Markup):
        return content
    return Markup(html.escape(str(content)))


def joined(*parts: Any) -> Markup:
    """Parts one after the other."""
    return Markup("".join(text(part) for part in parts))


def tag(name: str, *children: Any, **attributes: Any) -> Markup:
    """An element, such as ``tag("td", "a < b", class_="left")``.

    Args:
        name: Its name.
        children: Its content; strings are escaped.
        attributes: Its attributes; ``_`` stands for ``-``, and one at the end is
            dropped. Those that are None are left out.
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{given}>{joined(*children)}</{name}>")


def table(headings, rows, marked=frozenset(), **attributes: Any) -> Markup:
    """A table that scrolls by itself where the screen is narrow.

    Args:
        headings: Cells of the first row.
        rows: Rows of cells; a cell that is a tuple is its content and its class.
        marked: Places of rows that stand out.
        attributes: Attributes of the table.
    """
    head = tag("tr", *(tag("th", one, scope="col") for one in headings))
    body = [
        tag("tr", *map(_cell, row), class_="marked" if place in marked else None)
        for place, row in enumerate(rows)
    ]
    whole = tag("table", tag("thead", head), tag("tbody", *body), **attributes)
    hint = tag("p", "The table scrolls sideways.", class_="hint small")
    return tag("div", hint, tag("div", whole, class_="scroll"))


def _cell(content):
    content, kind = content if isinstance(content, tuple) else (content, None)
    return tag("td", content, class_=kind)
