"""Imports go one way; the map of packages in `optax_matrix` has the order."""

import ast
import functools
import graphlib
import sys
from pathlib import Path

from _walks import walk

import optax_matrix

ROOT = Path(optax_matrix.__file__).parent
ALLOWED = {
    "_arguments": set(),
    "_surroundings": set(),
    "linalg": set(),
    "transforms": {"_surroundings", "linalg"},
    "matrices": set(),
    "stacks": {"matrices"},
    "sharding": {"_surroundings", "linalg", "matrices", "stacks"},
    "tree": {"_surroundings", "linalg", "matrices", "stacks", "sharding"},
    "checkpoint": {"matrices", "stacks", "tree", "quantization", "transforms"},
    "quantization": {"stacks", "sharding", "transforms", "linalg"},
    "recipes": {"matrices", "stacks", "tree", "transforms", "linalg"},
    "weights": {"matrices", "stacks", "tree", "transforms", "linalg"},
    "tuning": {"matrices"},
    "diagnostics": {
        *("_surroundings", "matrices", "stacks", "tree", "checkpoint"),
        *("transforms", "linalg", "weights"),
    },
}
# What all packages share.
COMMON = {"_arguments", "_dtypes", "_mesh", "_paths", "_platforms", "_printed"}
COMMON |= {"_thresholds"}
THIRD_PARTY = {
    "_arguments": {"jax", "numpy", "typing_extensions"},
    "_surroundings": {"jax", "jaxtyping", "optax"},
    "linalg": {"jax", "jaxtyping", "numpy"},
    "transforms": {"jax", "numpy", "optax", "typing_extensions"},
    "matrices": {"jax", "jaxtyping", "numpy", "optax"},
    "stacks": {"jax", "jaxtyping", "numpy", "optax"},
    "sharding": {"jax", "jaxtyping", "numpy", "optax"},
    "tree": {"jax", "jaxtyping", "numpy", "optax"},
    "checkpoint": {"jax", "jaxtyping", "numpy", "optax"},
    "quantization": {"jax", "jaxtyping", "optax"},
    "recipes": {"jax", "optax"},
    "weights": {"jax", "jaxtyping", "numpy", "optax"},
    "diagnostics": {"jax", "jaxtyping", "numpy", "optax"},
    # Pictures and bars are optional.
    "tuning": {"jax", "matplotlib", "numpy", "optax", "rich"},
}
ADAPTERS = ROOT / "adapters"  # Above all others: they import the whole package.
MODULES = sorted(
    p for p in ROOT.rglob("*.py") if p.parent != ROOT and ADAPTERS not in p.parents
)


@functools.cache
def _imports(path):
    nodes = ast.walk(ast.parse(path.read_text()))
    return [x for x in nodes if isinstance(x, ast.Import | ast.ImportFrom)]


def _imported(path):
    for node in _imports(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        else:
            yield node.module


@walk("path", MODULES)
def test_imports_go_one_way(path):
    package = path.relative_to(ROOT).parts[0]
    for name in _imported(path):
        top, *rest = name.split(".")
        if top == "optax_matrix":
            assert rest, f"{path} imports the whole package"
            allowed = ALLOWED[package] | COMMON | {package}
            assert rest[0] in allowed, f"{path} imports {name}"
        elif top not in sys.stdlib_module_names:
            assert top in THIRD_PARTY[package], f"{path} imports {name}"


def test_nothing_imports_the_adapters():
    """A framework is imported only by whoever imports its adapter."""
    for path in ROOT.rglob("*.py"):
        names = {name for name in _imported_names(path) if "adapters" in name}
        own = "optax_matrix.weights._adapters"
        assert all(name.startswith(own) for name in names), path
    assert not [*_imported(ADAPTERS / "__init__.py")]


def test_every_package_is_ruled():
    packages = {p.relative_to(ROOT).parts[0] for p in MODULES}
    assert packages == set(ALLOWED)


@walk("path", MODULES)
def test_recipes_hold_no_arithmetic_on_arrays(path):
    if path.relative_to(ROOT).parts[0] == "recipes":
        assert "jax.numpy" not in set(_imported(path))


def _imported_names(path):
    """Full dotted names, including those of ``from package import name``."""
    for node in _imports(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        else:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@walk("path", sorted(ROOT.rglob("*.py")))
def test_no_import_of_another_packages_underscore_module(path):
    own = path.relative_to(ROOT).with_suffix("").parts[0]
    for name in _imported_names(path):
        top, package, *rest = [*name.split("."), ""]
        if top == "optax_matrix" and package != own:
            private = [part for part in rest if part.startswith("_")]
            assert not private, f"{path} imports {name}"


def test_families_of_blocks_do_not_import_one_another_in_circles():
    imports = {}
    for path in (ROOT / "transforms").rglob("*.py"):
        family, *_ = path.relative_to(ROOT / "transforms").with_suffix("").parts
        for name in _imported(path) if family != "__init__" else ():
            _, *rest = name.removeprefix("optax_matrix.").split(".")
            if name.startswith("optax_matrix.transforms.") and rest[0] != family:
                assert not any(part.startswith("_") for part in rest[1:]), name
                imports.setdefault(family, set()).add(rest[0])
    order = list(graphlib.TopologicalSorter(imports).static_order())  # CycleError
    assert {"rotation", "low_rank", "sides"} <= set(order)


def test_no_files_import_one_another_in_circles():
    """A reader of a file may rely on those that it imports being understood."""
    own = {_module_of(path): path for path in ROOT.rglob("*.py")}
    imports = {}
    for module, path in own.items():
        if path.name != "__init__.py":  # Those gather what is in their package.
            imports[module] = {
                next(m for m in (name, name.rpartition(".")[0]) if m in own)
                for name in _imported_names(path)
                if name.startswith("optax_matrix.")
            }
    order = list(graphlib.TopologicalSorter(imports).static_order())  # CycleError
    assert "optax_matrix.tree._wrapper" in order


def _module_of(path):
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
