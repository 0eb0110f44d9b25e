"""At the end of a build: links lead somewhere, and no page loads from elsewhere."""

import html.parser
import posixpath
import urllib.parse
from pathlib import Path
from typing import Any

from sphinx.util import logging

_LOG = logging.getLogger(__name__)
_LOADED = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
}
_RELATIONS = {"stylesheet", "preload", "modulepreload", "icon", "shortcut", "manifest"}


def setup(app: Any) -> dict[str, Any]:
    """Checks after all pages are written."""
    app.connect("build-finished", check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def check(app: Any, failure: Exception | None) -> None:
    """Warns of each link that leads nowhere and of each file of another host."""
    if failure is not None or app.builder.format != "html":
        return
    root = Path(app.outdir)
    pages = {
        path.relative_to(root).as_posix(): _read(path) for path in root.rglob("*.html")
    }
    for name, page in pages.items():
        for address in page.loaded:
            if urllib.parse.urlsplit(address).netloc:
                _LOG.warning("%s loads %s", name, address)
        for link in page.links:
            if problem := _problem(name, link, pages, root):
                _LOG.warning("%s: %s", name, problem)


def _problem(name: str, link: str, pages: dict[str, "_Page"], root: Path) -> str | None:
    parts = urllib.parse.urlsplit(link)
    if parts.scheme or parts.netloc:
        return None
    path = urllib.parse.unquote(parts.path)
    target = posixpath.normpath(posixpath.join(posixpath.dirname(name), path))
    target = target if path else name
    if target not in pages:
        return None if (root / target).exists() else f"no page {link}"
    anchor = urllib.parse.unquote(parts.fragment)
    known = not anchor or anchor in pages[target].anchors
    return None if known else f"no place {link}"


def _read(path: Path) -> "_Page":
    page = _Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


class _Page(html.parser.HTMLParser):
    """Links, anchors and loaded files of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = set()
        self.loaded: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {key: value or "" for key, value in attrs}
        self.anchors.update(given[key] for key in ("id", "name") if key in given)
        if tag == "a" and "href" in given:
            self.links.add(given["href"])
        elif tag == "link" and _RELATIONS & set(given.get("rel", "").split()):
            self.loaded.add(given.get("href", ""))
        elif _LOADED.get(tag) in given:
            self.loaded.add(given[_LOADED[tag]])
