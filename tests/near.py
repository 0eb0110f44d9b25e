"""Runs the tests that a change can reach: `make test-near`.

python tests/near.py [--base main] [--list] [-- arguments of pytest]

Chosen are the test files that use a file changed since the base, directly or through
other files, and those that changed themselves; then the doctests of changed modules and
the contract of QUICK. A test uses a module where it imports a name that the module
defines, or takes it from a package: `om.muoneq` is in `recipes/_muoneq.py`, as is the
text "muoneq" in a test. What is not Python is used by tests that have its name, or that
of its folder, as a text. The tests of the study run where it changed.

What it can miss, and `make test` has: tests that take recipes from tables of all
(`METHODS`, `_registry.RECIPES`), names that are put together, what only `__init__.py`
says of a name, and what all tests use (`conftest.py`, `_setup.py`, pyproject.toml).
"""

import argparse
import ast
import functools
import os
import subprocess
import sys
from collections.abc import Iterable
from itertools import filterfalse
from pathlib import Path
from typing import Any

TIER = "not slow"
STUDY = "examples/study/tests"
KINDS = (ast.Import, ast.ImportFrom, ast.Attribute, ast.Constant)


class Uses:
    """Which files a file uses, in one checkout."""

    def __init__(self, root: Path):
        self.root = root
        self.file = functools.cache(self._file)
        self.nodes = functools.cache(self._nodes)
        self.exports = functools.cache(self._exports)
        self.of = functools.cache(self._of)

    def tests(self) -> list[Path]:
        """All test files."""
        folders = (self.root / "tests", self.root / STUDY)
        return sorted(file for x in folders for file in x.rglob("test_*.py"))

    def closure(self, file: Path) -> set[Path]:
        """The file, what it uses, what that uses, and so on.

        But not what the tables in the packages of `optax_matrix` name: that is all.
        """
        found, new = set(), {file}
        while new:
            found |= new
            new = set().union(*map(self.of, filterfalse(self._is_table, new))) - found
        return found

    def _is_table(self, file: Path) -> bool:
        inside = self.root / "optax_matrix" in file.parents
        return inside and file.name == "__init__.py" and file.parent.name[0] != "_"

    def _file(self, module: str) -> Path | None:
        """The file of a module of this checkout; modules of tests have no package."""
        path = module.replace(".", "/")
        places = (f"{path}.py", f"{path}/__init__.py", f"tests/{path}.py")
        found = (self.root / place for place in places if path)
        return next((x for x in found if x.is_file()), None)

    def _nodes(self, file: Path) -> dict[type, list[Any]]:
        """The nodes of a file that say what it uses, by their kind."""
        found: dict[type, list] = {kind: [] for kind in KINDS}
        for node in ast.walk(ast.parse(file.read_text())):
            if type(node) in found:
                found[type(node)].append(node)
        return found

    def _exports(self, module: str) -> dict[str, str]:
        """Names that a module imports, with the modules that it takes them from."""
        froms = self.nodes(self.file(module))[ast.ImportFrom]
        return {alias.name: x.module for x in froms for alias in x.names}

    def owner(self, module: str, name: str) -> str:
        """The module that a name of a module is, or that defines it."""
        if self.file(f"{module}.{name}"):
            return f"{module}.{name}"
        exports = self.exports(module) if self.file(module) else {}
        source = exports.get(name)
        if source and self.file(source):
            return self.owner(source, name)
        if "*" in exports and self.file(exports["*"]):
            found = self.owner(exports["*"], name)
            if found != exports["*"]:
                return found
        return module

    def _of(self, file: Path) -> set[Path]:
        owners, modules = set(), {}
        nodes = self.nodes(file)
        for alias in (alias for node in nodes[ast.Import] for alias in node.names):
            name = alias.name if alias.asname else alias.name.partition(".")[0]
            modules[alias.asname or name] = name
        for node in nodes[ast.ImportFrom]:
            for alias in node.names:
                owner = self.owner(node.module, alias.name)
                modules[alias.asname or alias.name] = owner
                owners.add(owner)
        for node in nodes[ast.Attribute]:
            first, *rest = _dotted(node) or [""]
            if self.file(modules.get(first, "")):
                owners.add(functools.reduce(self.owner, rest, modules[first]))
        if file.name.startswith("test_"):
            owners |= self._named(file)
        files = map(self.file, owners)
        return {x for x in files if x and x != file}

    def _named(self, file: Path) -> set[str]:
        """The modules of public names that the file has as texts."""
        texts = {x.value for x in self.nodes(file)[ast.Constant]}
        names = [x for x in texts if isinstance(x, str) and x.isidentifier()]
        owners = {self.owner("optax_matrix", name) for name in names}
        return owners - {"optax_matrix"}


def _dotted(node: Any) -> list[str]:
    """The names of ``a.b.c``; none of other expressions."""
    if isinstance(node, ast.Name):
        return [node.id]
    inner = _dotted(node.value) if isinstance(node, ast.Attribute) else []
    return [*inner, node.attr] if inner else []


def near(root: Path, changed: Iterable[Path]) -> list[Path]:
    """The test files that changed files reach."""
    uses, changed = Uses(root), set(changed)
    others = [x.relative_to(root) for x in changed if x.suffix != ".py"]
    parts = {part for path in others for part in path.parts}
    words = [f'"{part}"' for part in parts - {"tests", "examples", "optax_matrix"}]

    def reaches(test):
        files = uses.closure(test)
        texts = (x.read_text() for x in files if words and root / "tests" in x.parents)
        return files & changed or any(word in text for text in texts for word in words)

    study = any(root / "examples/study" in file.parents for file in changed)
    tests = (x for x in uses.tests() if study or root / STUDY not in x.parents)
    return list(filter(reaches, tests))


def changed_since(root: Path, base: str) -> list[Path]:
    """Files that differ from where the branch left its base, and new ones."""

    def git(*args):
        done = subprocess.run(["git", *args], cwd=root, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{done.stderr}Pass a branch or commit: make test-near BASE=main")
        return done.stdout.split("\n")

    start = git("merge-base", base, "HEAD")[0]
    names = git("diff", "--name-only", start)
    names += git("ls-files", "--others", "--exclude-standard")
    return sorted({root / name for name in names if (root / name).is_file()})


def main(root: Path, arguments: list[str]) -> int:
    """Says what is chosen, and runs it; the exit code of pytest."""
    parser = argparse.ArgumentParser(
        description="Runs the tests that a change can reach."
    )
    parser.add_argument("--base", default="main", help="where the branch left")
    parser.add_argument("--list", action="store_true", help="run nothing")
    parser.add_argument("rest", nargs="*", help="arguments of pytest, behind --")
    options = parser.parse_args(arguments)
    changed = changed_since(root, options.base)
    tests = near(root, changed)
    doctests = [x for x in changed if (root / "optax_matrix") in x.parents]
    doctests = [x for x in doctests if x.suffix == ".py"]
    names = [str(x.relative_to(root)) for x in (*tests, *doctests)]
    print(
        f"{len(changed)} files differ from {options.base}; {len(tests)} of "
        f"{len(Uses(root).tests())} test files reach them:",
        *names,
        "and the contract of QUICK",
        sep="\n  ",
        flush=True,
    )
    if options.list:
        return 0
    run = lambda *args: subprocess.call(
        [sys.executable, "-m", "pytest", "-q", *options.rest, *args], cwd=root
    )
    contract = ("tests/test_contract.py", "-m", "not slow and not broad")
    codes = [run("-m", TIER, *names)] if names else []
    return max(*codes, run(*contract), 0)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", str(Path(__file__).parents[1]))
    sys.exit(main(Path(__file__).parents[1], sys.argv[1:]))
