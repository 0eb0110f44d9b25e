"""The public names of the package, and what a name in single backticks refers to.

Sphinx builds the pages from it (`conf.py`); `tests/test_docs.py` uses it to check that
every reference in a public docstring has a target. It needs no Sphinx.
"""

import ast
import builtins
import contextlib
import functools
import importlib
import importlib.util
import inspect
import itertools
import pkgutil
import re
import sys
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

import optax_matrix

# Names of these packages are shown as code, without a link.
EXTERNAL = ("flax", "functools", "jax", "numpy", "optax", "re")
# Functions of every transformation and their arguments, which blocks refer to.
CONTRACT = ("init", "update", "updates", "state", "params")

# Doctests, roles and literals come first, so that their backticks are skipped.
_MARKUP = re.compile(
    r"""^[ ]*>>>.*?(?=\n[ ]*\n|\Z)   # a doctest, to the next empty line
    | ``.*?``                        # a literal
    | :[\w:]+:`[^`]*`                # a role
    | `[^`<]*<[^`>]*>`_{1,2}         # a link
    | (?<![`\w])`([^`]+)`(?![`_])    # a reference
    """,
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)


class Public(NamedTuple):
    """A public name: its package, and the object."""

    package: str
    name: str
    value: Any

    @property
    def path(self) -> str:
        """The name with its package, as links use it."""
        return f"optax_matrix.{self.package}.{self.name}"


def packages() -> dict[str, types.ModuleType]:
    """The public packages and modules that have an ``__all__``, by name."""
    found = [m.name for m in pkgutil.iter_modules(optax_matrix.__path__)]
    public = [name for name in found if not name.startswith("_")]
    modules = {n: importlib.import_module(f"optax_matrix.{n}") for n in public}
    return {n: module for n, module in modules.items() if hasattr(module, "__all__")}


def families(package: str) -> dict[str, list[str]]:
    """The public packages inside a package, with the public names that they define."""
    parent = packages()[package]
    path = getattr(parent, "__path__", [])
    found = [m.name for m in pkgutil.iter_modules(path) if m.ispkg]
    inner = {
        name: vars(importlib.import_module(f"{parent.__name__}.{name}"))
        for name in found
        if not name.startswith("_")
    }
    of_parent = lambda x, own: own.get(x) is getattr(parent, x)
    every = {
        name: [x for x in parent.__all__ if of_parent(x, own)]
        for name, own in inner.items()
    }
    return {name: chosen for name, chosen in every.items() if chosen}


def public_names() -> list[Public]:
    """Every public name once, sorted by package and name."""
    return [
        Public(package, name, getattr(module, name))
        for package, module in packages().items()
        for name in sorted(module.__all__, key=str.lower)
        if not inspect.ismodule(getattr(module, name))
    ]


def docstring(item: Public) -> str:
    """Its docstring; for a constant or a type alias the text near it."""
    if inspect.isclass(item.value) or inspect.isroutine(inspect.unwrap(item.value)):
        return inspect.getdoc(item.value) or ""
    return _constants().get(item.name, "")


def parts(item: Public) -> Iterator[tuple[str, Any, str]]:
    """Path, object and docstring of a name and of its public methods."""
    yield item.path, item.value, docstring(item)
    for member in _members(item.value):
        value = inspect.getattr_static(item.value, member, None)
        if inspect.isroutine(value) or isinstance(value, property):
            text = inspect.getdoc(value) or ""
            yield f"{item.path}.{member}", getattr(item.value, member), text


def references(text: str) -> list[str]:
    """The references in a docstring."""
    found: list[str] = []
    replace_references(text, lambda name: found.append(name) or name)
    return found


def is_constant(item: Public) -> bool:
    """Whether it is neither a function nor a class."""
    value = inspect.unwrap(item.value)
    return not (inspect.isclass(value) or inspect.isroutine(value))


@functools.cache
def _constants() -> dict[str, str]:
    """The text about each assigned name: below it, above it or beside it."""
    texts = {}
    for path, module in sorted(sys.modules.items()):
        if not path.startswith("optax_matrix."):
            continue
        source = inspect.getsource(module)
        lines, body = source.split("\n"), ast.parse(source).body
        for node, below in itertools.zip_longest(body, body[1:]):
            if isinstance(node, ast.Assign | ast.AnnAssign):
                target = node.target if isinstance(node, ast.AnnAssign) else None
                name = ast.unparse(target or node.targets[0])
                texts[name] = _string(below) or _comment(lines, node) or ""
    return texts


def _string(node: ast.stmt | None) -> str:
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return inspect.cleandoc(str(node.value.value)) if is_text else ""


def _comment(lines: list[str], node: ast.stmt) -> str:
    above = itertools.takewhile(
        lambda line: line.startswith("# "), reversed(lines[: node.lineno - 1])
    )
    beside = lines[node.end_lineno - 1].partition("  # ")[2]
    return "\n".join(line[2:] for line in reversed(list(above))) or beside


def replace_references(text: str, replace: Any) -> str:
    """The text with ``replace(name)`` in the place of every reference."""

    def one(match: re.Match[str]) -> str:
        return match[0] if match[1] is None else replace(" ".join(match[1].split()))

    return _MARKUP.sub(one, text)


class Resolver:
    """Finds what references refer to."""

    def __init__(self) -> None:
        self._paths: dict[str, set[str]] = {}
        for name in packages():
            self._add(f"optax_matrix.{name}", name)
        for item in public_names():
            short, value = item.name, item.value
            self._add(item.path, short, f"{item.package}.{short}")
            for member in _members(value):
                path = f"{item.path}.{member}"
                ends = (f"{short}.{member}", f"{item.package}.{short}.{member}")
                self._add(path, *ends)

    def _add(self, path: str, *names: str) -> None:
        for name in names:
            self._paths.setdefault(name, set()).add(path)

    def __call__(self, reference: str, owner: Any) -> str | None:
        """The path of a public name, "" for other code, None for an unknown name.

        Args:
            reference: What stands between the backticks.
            owner: The object whose docstring it is; its arguments are known names.
        """
        name = reference.split("(")[0].removeprefix("optax_matrix.").removeprefix("om.")
        own = _own_names(owner)
        paths = self._paths.get(name, set())
        if len(paths) == 1 and name not in own:
            return next(iter(paths))
        known = {*own, *CONTRACT, "optax_matrix"}
        if name in known or name.split(".")[0] in own or _is_external(name):
            return ""
        return None


def _own_names(owner: Any) -> set[str]:
    """Arguments of a function; fields and methods of a class, for its methods too."""
    names = set(_members(owner))
    kind, _, method = getattr(owner, "__qualname__", "").rpartition(".")
    if method and "<" not in kind:
        names |= set(_members(getattr(sys.modules[owner.__module__], kind, None)))
    with contextlib.suppress(TypeError, ValueError):
        names |= set(inspect.signature(owner).parameters)
    return names


def _members(value: Any) -> Iterator[str]:
    if not inspect.isclass(value):
        return
    for kind in value.__mro__:
        if kind.__module__.startswith("optax_matrix"):
            own = {**vars(kind), **vars(kind).get("__annotations__", {})}
            yield from (name for name in own if not name.startswith("_"))


def _is_external(name: str) -> bool:
    root, *rest = name.split(".")
    if hasattr(builtins, name):
        return True
    if root not in EXTERNAL or not rest:
        return root in EXTERNAL
    if importlib.util.find_spec(root) is None:
        return True  # An optional package, not installed here.
    value = importlib.import_module(root)
    for depth, part in enumerate(rest):
        if not hasattr(value, part):
            try:
                importlib.import_module(".".join([root, *rest[: depth + 1]]))
            except ImportError:
                return False
        value = getattr(value, part)
    return True
