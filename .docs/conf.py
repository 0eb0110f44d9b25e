"""Sphinx builds the API reference from the docstrings: ``make docs``."""

import inspect
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.util import logging

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import names  # noqa: E402

import optax_matrix  # noqa: E402

project = "optax_matrix"
release = optax_matrix.__version__
extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "mathml", "signatures"]
exclude_patterns = ["_build"]
nitpicky = True
nitpick_ignore_regex = [("py:class", ".*")]  # Types of other packages have no link.

html_theme = "furo"
html_title = f"optax_matrix {release}"
html_math_renderer = "mathml"
html_static_path = ["static"]
html_css_files = ["docs.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False

default_role = "name"
add_module_names = False
autodoc_member_order = "bysource"
maximum_signature_line_length = 72
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False

_LOG = logging.getLogger(__name__)
_RESOLVE = names.Resolver()


def setup(app: Any) -> None:
    """Connects the pages and the references."""
    app.connect("builder-inited", write_pages)
    app.connect("autodoc-process-docstring", find_references, priority=900)
    app.connect("source-read", find_references_of_guide)
    app.add_role("name", name_role)
    app.connect("autodoc-skip-member", skip_member)


# Pages: one per package, with tables, and one per public name.


GROUPS = (
    "Functions",
    "Methods alone, for chains",
    "Classes",
    "States",
    "Constants and types",
)


def write_pages(app: Any) -> None:
    """Writes the sources of all pages but the index."""
    del app
    folder = HERE / "api"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    public = names.public_names()
    for package in names.packages():
        items = [item for item in public if item.package == package]
        for item in items:
            (folder / f"{item.path}.rst").write_text(_page(item))
        (folder / f"{package}.rst").write_text(_package_page(package, items))


def _package_page(package: str, items: list[names.Public]) -> str:
    lines = [_title(package), f".. automodule:: optax_matrix.{package}", ""]
    ordered = []
    for title, chosen in _sections(package, items):
        lines += [_title(title, "-")]
        if title in names.families(package):
            lines += [f".. automodule:: optax_matrix.{package}.{title}", ""]
        lines += [*map(_row, chosen), ""]
        ordered += chosen
    lines += [".. toctree::", "   :hidden:", ""]
    return "\n".join([*lines, *(f"   {item.path}" for item in ordered)]) + "\n"


def _sections(
    package: str, items: list[names.Public]
) -> Iterator[tuple[str, list[names.Public]]]:
    """Families, then what belongs to none, by kind."""
    left = list(items)
    for family, module in names.families(package).items():
        yield family, [item for item in left if item.name in module.__all__]
        left = [item for item in left if item.name not in module.__all__]
    for title in GROUPS:
        if chosen := [item for item in left if _group(item) == title]:
            yield title, chosen


def _group(item: names.Public) -> str:
    if names.is_constant(item):
        return "Constants and types"
    if inspect.isclass(item.value):
        return "States" if item.name.endswith("State") else "Classes"
    of_method = item.package == "recipes" and item.name.startswith("scale_by_")
    return "Methods alone, for chains" if of_method else "Functions"


def _row(item: names.Public) -> str:
    first = names.docstring(item).split("\n\n")[0]
    if not first:
        _LOG.warning("%s has no docstring", item.path)
    summary = " ".join(_linked(first, item.value, item.path).split())
    return f":py:obj:`{item.name} <{item.path}>`\n   {summary or '.'}\n"


def _page(item: names.Public) -> str:
    top = getattr(optax_matrix, item.name, None) is item.value
    path = f"optax_matrix.{item.name}" if top else item.path
    if names.is_constant(item):
        text = names.docstring(item).replace("\n", "\n   ")
        body = f".. py:data:: {item.path}\n\n   {text}\n"
    elif inspect.isclass(item.value):
        body = f".. autoclass:: {item.path}\n   :members:\n"
    else:
        body = f".. autofunction:: {item.path}\n"
    return f"{_title(item.name)}\nPublic as ``{path}``.\n\n{body}"


def _title(text: str, line: str = "=") -> str:
    return f"{text}\n{line * len(text)}\n"


def skip_member(
    app: Any, what: str, name: str, member: Any, skip: bool, options: Any
) -> bool | None:
    """Skips fields, which the docstring of their class lists."""
    del app, what, name, options
    is_code = inspect.isroutine(member) or isinstance(member, property)
    return skip or not is_code or not inspect.getdoc(member)


# References: names in single backticks, which `name_role` links. Their text stays as it
# is, so that columns of tables stay aligned.

_LINKS: dict[tuple[str, str], str] = {}  # By page and name.
_REPORTED: set[tuple[str, str]] = set()


def find_references(
    app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]
) -> None:
    """Finds what the references of a docstring refer to."""
    del what, options
    for reference in names.references("\n".join(lines)):
        path = _resolve(reference, value, name)
        _LINKS[app.env.current_document.docname, reference] = path


def find_references_of_guide(app: Any, page: str, source: list[str]) -> None:
    """Finds what the references of a guide refer to."""
    del app
    if page.startswith("guides/"):
        for reference in names.references(source[0]):
            _LINKS[page, reference] = _resolve(reference, optax_matrix, page)


def name_role(
    role: str, raw: str, text: str, line: int, inliner: Any, *options: Any
) -> tuple[list[Any], list[Any]]:
    """A link to a public name; code, if it is another name."""
    del role
    name, env = " ".join(text.split()), inliner.document.settings.env
    path = _LINKS.get((env.current_document.docname, name))
    if not path:
        return [nodes.literal(raw, name)], []
    link = env.get_domain("py").role("obj")
    return link("py:obj", raw, f"{name} <{path}>", line, inliner, *options)


def _linked(text: str, owner: Any, where: str) -> str:
    def link(name: str) -> str:
        path = _resolve(name, owner, where)
        return f":py:obj:`{name} <{path}>`" if path else f"``{name}``"

    return names.replace_references(text, link)


def _resolve(name: str, owner: Any, where: str) -> str:
    path = _RESOLVE(name, owner)
    if path is None and (name, where) not in _REPORTED:
        _REPORTED.add((name, where))
        _LOG.warning("`%s` in %s refers to nothing public", name, where)
    return path or ""
