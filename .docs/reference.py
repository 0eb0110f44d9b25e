"""The API pages, and links for names in single backticks.

A package has one page, `transforms` one per family. Recipes stand on the pages of the
gallery (`gallery`); their package page lists them.
"""

import ast
import importlib
import inspect
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import names
from docutils import nodes
from rst import title
from sphinx.util import logging

import optax_matrix
from optax_matrix import _arguments

FOLDER = Path(__file__).parent / "api"
PACKAGES = [
    *("recipes", "transforms", "linalg", "matrices", "tree", "stacks", "checkpoint"),
    *("sharding", "weights", "quantization", "tuning", "diagnostics"),
]
GROUPS = "Functions", "Classes", "States", "Constants and types"
# What the functions of `linalg` are for, by the modules that they are in.
TOPICS = {
    "Equal rows and columns": ["_equilibrate", "_sinkhorn"],
    "Polar factors": ["_newton_schulz", "_polar"],
    "Coefficients of Newton-Schulz": ["coefficients", "const"],
    "Orthonormal columns": ["_orthonormalize"],
    "Subspaces": ["_subspace"],
    "Eigenvectors, roots and rotations": ["_eigenbasis", "_inverse_root", "rotations"],
    "Orthogonal maps": ["_orthogonal", "skew", "abc"],
}
_GUIDE = re.compile(r"``\.docs/guides/(\w+)\.rst``")
_LOG = logging.getLogger(__name__)
_RESOLVE = names.Resolver()


def setup(app: Any) -> dict[str, Any]:
    """Connects the pages and the references."""
    app.connect("builder-inited", write_pages)
    app.connect("autodoc-process-docstring", find_references, priority=900)
    app.connect("source-read", find_references_of_page)
    app.connect("autodoc-skip-member", skip_member)
    app.connect("viewcode-find-source", find_source)
    app.add_role("name", name_role)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def write_pages(app: Any) -> None:
    """Writes the pages of the packages, of the types, and the map of them all."""
    del app
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    public = names.public_names()
    for package in names.packages():
        items = [item for item in public if item.package == package]
        families = names.families(package)
        in_families = {name for chosen in families.values() for name in chosen}
        own = [item for item in items if item.name not in in_families]
        inner = [f"{package}.{family}" for family in families]
        _write(package, _package_page(package, own, inner))
        for family, listed in families.items():
            chosen = [item for item in items if item.name in listed]
            _write(f"{package}.{family}", _package_page(f"{package}.{family}", chosen))
    _write("types", _types_page())
    _write("index", _index_page())


def _write(page: str, text: str) -> None:
    (FOLDER / f"{page}.rst").write_text(text)


def _index_page() -> str:
    pages = "\n   ".join([*PACKAGES, "types"])
    return f"""{title("API")}
.. automodule:: optax_matrix

:ref:`All names <genindex>`. Every name has a link to its source.

.. toctree::
   :hidden:

   {pages}
"""


def _package_page(
    package: str, items: list[names.Public], inner: list[str] | None = None
) -> str:
    lines = [
        title(package.rpartition(".")[2]),
        f".. automodule:: optax_matrix.{package}",
        "",
    ]
    if package == "recipes":
        return "\n".join([*lines, *_list_of_recipes()]) + "\n"
    if inner:
        listed = [f"   {name}" for name in inner]
        lines += [".. toctree::", "   :maxdepth: 1", "", *listed, ""]
    for heading, chosen in _sections(package, items):
        lines += [title(heading, "-"), *map(entry, chosen)]
    return "\n".join(lines) + "\n"


def _list_of_recipes() -> Iterator[str]:
    for group, recipes in optax_matrix.recipes.METHODS.items():
        yield title(group, "-")
        for recipe in recipes:
            yield f"* :doc:`{recipe.__name__} </gallery/{recipe.__name__}>`"
        yield ""
    for item in names.public_names():
        if item.package == "recipes" and not hasattr(item.value, "recipe"):
            yield entry(item)


def _sections(
    package: str, items: list[names.Public]
) -> Iterator[tuple[str, list[names.Public]]]:
    if package == "linalg":
        for heading, modules in TOPICS.items():
            yield heading, [item for item in items if _module(item) in modules]
        return
    for heading in GROUPS:
        if chosen := [item for item in items if _group(item) == heading]:
            yield heading, chosen


def _module(item: names.Public) -> str:
    if isinstance(item.value, tuple):
        return "const"
    return inspect.unwrap(item.value).__module__.rpartition(".")[2]


def _group(item: names.Public) -> str:
    if names.is_constant(item):
        return "Constants and types"
    if inspect.isclass(item.value):
        return "States" if item.name.endswith("State") else "Classes"
    return "Functions"


def entry(item: names.Public) -> str:
    """The text that documents a name."""
    if names.is_constant(item):
        text = names.docstring(item)
        if not text:
            _LOG.warning("%s has no docstring", item.path)
        text = linked(text, item.value, item.path).replace("\n", "\n   ")
        module, _, name = item.path.rpartition(".")
        return f".. py:data:: {name}\n   :module: {module}\n\n   {text}\n"
    if inspect.isclass(item.value):
        return f".. autoclass:: {item.path}\n   :members:\n"
    return f".. autofunction:: {item.path}\n"


OTHER_TYPES = {
    "Transformation": "An optax transformation, such as ``optax.adamw(1e-3)``.",
    "Mask": "A tree or prefix tree of True and False, or a function from the parameters"
    " to one, as in `optax.adamw`.",
    "ArrayLike": "A number or an array (`jax.typing`); it may be traced.",
    "DTypeLike": "A dtype or its name (`jax.typing`).",
}


def _types_page() -> str:
    """The types of arguments, with the rules that they declare."""
    rules = {}
    for name, alias in vars(_arguments).items():
        if isinstance(alias, type(_arguments.Decay)):
            check = alias.__value__.__metadata__[0]
            rule = inspect.getdoc(check).removeprefix("Raises unless ").split("\n\n")[0]
            rules[name] = " ".join(f"{rule[0].upper()}{rule[1:]}".split())
    entries = [
        f".. py:type:: {name}\n\n   {text}\n"
        for name, text in (rules | OTHER_TYPES).items()
    ]
    lines = [
        title("Types of arguments"),
        "What signatures say, and the rule that is checked when a factory is called. A",
        "violation is a ``ValueError`` with the argument, the rule and the value.",
        "Numbers may be traced; words, flags and ints are static. A ``Literal`` lists",
        "the words that are allowed.",
        "",
        *entries,
    ]
    return "\n".join(lines)


def skip_member(
    app: Any, what: str, name: str, member: Any, skip: bool, options: Any
) -> bool | None:
    """Skips fields, which the docstring of their class lists."""
    del app, what, name, options
    is_code = inspect.isroutine(member) or isinstance(member, property)
    return skip or not is_code or not inspect.getdoc(member)


def find_source(app: Any, module: str) -> tuple[str, dict[str, tuple[str, int, int]]]:
    """The source of a module, and the lines of its functions and classes.

    Sphinx's own parser fails at ``{**a, "b": c}`` in a decorator.
    """
    del app
    source = inspect.getsource(importlib.import_module(module))
    lines: dict[str, tuple[str, int, int]] = {}
    for node in ast.parse(source).body:
        for name, part in _definitions(node):
            first = min([part.lineno, *(d.lineno for d in part.decorator_list)])
            kind = "class" if isinstance(part, ast.ClassDef) else "def"
            lines[name] = kind, first, part.end_lineno or first
    return source, lines


def _definitions(node: ast.stmt) -> Iterator[tuple[str, Any]]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name, node
    if isinstance(node, ast.ClassDef):
        methods = [x for x in node.body if isinstance(x, ast.FunctionDef)]
        yield from ((f"{node.name}.{method.name}", method) for method in methods)


# References: names in single backticks, which `name_role` links. Their text stays as it
# is, so that columns of tables stay aligned.

_LINKS: dict[tuple[str, str], str] = {}  # By page and name.
_REPORTED: set[tuple[str, str]] = set()


def find_references(
    app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]
) -> None:
    """Finds what the references of a docstring refer to."""
    del what, options
    page = app.env.current_document.docname
    lines[:] = [_GUIDE.sub(r":doc:`/guides/\1`", line) for line in lines]
    for reference in names.references("\n".join(lines)):
        path = _resolve(reference, value, name)
        if _LINKS.setdefault((page, reference), path) != path:  # Of another owner.
            text = r"(?<![`:\w])`" + re.escape(reference) + r"`(?![`_])"
            lines[:] = [re.sub(text, _link(reference, path), line) for line in lines]


def find_references_of_page(app: Any, page: str, source: list[str]) -> None:
    """Finds what the references of a page refer to, docstrings in it aside."""
    if app.env.doc2path(page).suffix == ".rst":
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


def linked(text: str, owner: Any, where: str) -> str:
    """A text whose references are roles, of a page with several owners."""
    return names.replace_references(
        text, lambda name: _link(name, _resolve(name, owner, where))
    )


def _link(name: str, path: str) -> str:
    return f":py:obj:`{name} <{path}>`" if path else f"``{name}``"


def _resolve(name: str, owner: Any, where: str) -> str:
    path = _RESOLVE(name, owner)
    if path is None and (name, where) not in _REPORTED:
        _REPORTED.add((name, where))
        _LOG.warning("`%s` in %s refers to nothing public", name, where)
    return path or ""
