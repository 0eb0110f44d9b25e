"""Public docstrings exist, and what they refer to exists.

`make docs` needs both for pages without warnings; this finds the same in a second.
"""

import doctest
import importlib
import importlib.util
import re
import sys
import textwrap
import types
from pathlib import Path

import pytest
from _walks import walk

import optax_matrix
from examples.study.bench.rates_table import RECIPES, paper_rate
from optax_matrix import _arguments

PATH = Path(__file__).parents[1] / ".docs" / "names.py"
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
CONTRIBUTING = PATH.parents[1] / ".github" / "CONTRIBUTING.md"
GUIDES = [PATH.parent / "index.rst", *sorted((PATH.parent / "guides").glob("*.rst"))]


def _load():
    spec = importlib.util.spec_from_file_location("docs_names", PATH)
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


names = _load()
PACKAGES = names.packages()


def _texts(package):
    module = PACKAGES[package]
    yield f"optax_matrix.{package}", module, module.__doc__
    for family in names.families(package):
        path = f"optax_matrix.{package}.{family}"
        yield path, module, importlib.import_module(path).__doc__
    for item in names.public_names():
        if item.package == package:
            yield from names.parts(item)


@walk("package", PACKAGES)
def test_every_public_name_has_a_docstring(package):
    missing = [
        item.path
        for item in names.public_names()
        if item.package == package and not names.docstring(item)
    ]
    assert not missing


@walk("package", PACKAGES)
def test_references_resolve(package):
    resolve = names.Resolver()
    unknown = [
        f"`{reference}` in {path}"
        for path, owner, text in _texts(package)
        for reference in names.references(text)
        if resolve(reference, owner) is None
    ]
    assert not unknown, "\n".join(unknown)


def test_references_of_rules_resolve():
    """A page for the types of arguments has what their checks say."""
    resolve, kind = names.Resolver(), type(_arguments.Decay)
    aliases = [x for x in vars(_arguments).values() if isinstance(x, kind)]
    rules = [alias.__value__.__metadata__[0].__doc__ for alias in aliases]
    found = [name for text in rules for name in names.references(text)]
    assert not [name for name in found if resolve(name, _arguments) is None]


@walk("name", RECIPES)
def test_every_recipe_links_its_source_and_gives_a_rate(name):
    assert "<https://" in RECIPES[name].__doc__
    assert any(map(str.isdigit, paper_rate(name)))


@walk("guide", GUIDES)
def test_references_of_guides_resolve(guide):
    resolve, references = names.Resolver(), names.references(guide.read_text())
    assert references or guide.stem == "index"
    assert not [r for r in references if resolve(r, optax_matrix) is None]


@pytest.mark.broad
@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.stem)
def test_guides_run(guide):
    found = doctest.testfile(str(guide), module_relative=False, optionflags=FLAGS)
    assert found.attempted
    assert not found.failed


BLOCKS = re.findall(
    r"^( *)```python\n(.*?)\n\1```", CONTRIBUTING.read_text(), re.M | re.S
)
SAMPLES = [x for x in (textwrap.dedent(text) for _, text in BLOCKS) if "\ndef " in x]


@pytest.mark.broad
@pytest.mark.parametrize("text", SAMPLES, ids=["recipe"])
def test_samples_for_contributors_run(text, monkeypatch):
    module = types.ModuleType("sample_for_contributors")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(text, "CONTRIBUTING.md", "exec"), vars(module))
    for name in vars(module).keys() & {"muon_rows", "scale_by_muon_rows"}:
        monkeypatch.setattr(optax_matrix, name, getattr(module, name), raising=False)
    found = doctest.testmod(module, optionflags=FLAGS)
    assert found.attempted
    assert not found.failed


def test_what_a_reference_is():
    text = "`muon`, ``muon``, :math:`x`, `Muon <https://a.b>`_\n\n>>> '`x`'\n\n`a\nb`"
    assert names.references(text) == ["muon", "a b"]
    resolve, owner = names.Resolver(), PACKAGES["recipes"].muon
    assert resolve("muon", owner) == "optax_matrix.recipes.muon"
    assert resolve("linalg.newton_schulz", owner) == "optax_matrix.linalg.newton_schulz"
    assert resolve("learning_rate", owner) == ""
    assert resolve("optax.contrib.muon", owner) == ""
    assert resolve("optax.contrib.no_such_name", owner) is None
    assert resolve("no_such_name", owner) is None
