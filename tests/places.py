"""The places that a recipe needs, besides its own file: what it has, and what it lacks.

python tests/places.py muoneq

A name that is no recipe yet lacks all of them, which makes the list for a new one. Each
row says what to write where; files are read as they are, nothing is run.
"""

import argparse
import ast
import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]

import optax_matrix as om
from examples.study.bench.rates_table import paper_rate
from optax_matrix._arguments import KERNELS
from optax_matrix.recipes._recipe import Common

OF_EVERY = {*Common.__annotations__, "learning_rate", "weight_decay", "mu_dtype"}


class Place(NamedTuple):
    """Where a recipe has to be.

    Attributes:
        files: The files, one of which has it.
        add: What to write there.
        has: Function from the recipe's name, a keyword and a file to whether it is
            there.
        applies: Function from the recipe to the keywords, or other names, that need
            it; ``[""]`` for the recipe as a whole, nothing if it does not.
        may: Whether a recipe can do without.
    """

    files: Sequence[str]
    add: str
    has: Callable[[str, str, str], bool]
    applies: Callable[[Any], list[str]] = lambda _: [""]
    may: bool = False


@functools.cache
def text(file: str) -> str:
    """A file of the repository."""
    return (ROOT / file).read_text()


@functools.cache
def names_in(file: str, variable: str = "") -> frozenset[str]:
    """The strings and names in the values of a variable, or in a whole file.

    Of ``"alice-carry"`` and ``om.scale_by_alice`` this is ``alice``.
    """
    found = set()
    for node in ast.walk(ast.parse(text(file))):
        for part in ast.walk(node) if _sets(node, variable) else ():
            for name in (getattr(part, at, None) for at in ("value", "id", "attr")):
                if isinstance(name, str):
                    found |= {name, name.removeprefix("scale_by_").split("-")[0]}
    return frozenset(found)


def _sets(node: ast.AST, variable: str) -> bool:
    if not variable:
        return isinstance(node, ast.Module)
    targets = getattr(node, "targets", [getattr(node, "target", None)])
    return variable in [getattr(target, "id", None) for target in targets]


def inside(variable: str = "") -> Callable[[str, str, str], bool]:
    """The recipe (or its keyword, or both with a colon) stands in a variable."""

    def has(name: str, key: str, file: str) -> bool:
        found = names_in(file, variable)
        return bool({key, f"{name}:{key}"} & found if key else name in found)

    return has


def like(pattern: str) -> Callable[[str, str, str], bool]:
    """The recipe stands in a text, as a pattern has it."""
    return lambda name, _, file: bool(
        re.search(pattern.replace("NAME", name), text(file), re.MULTILINE)
    )


def own(recipe: Any) -> dict[str, Any]:
    """The keywords that not every recipe has, with their defaults."""
    given = inspect.signature(recipe).parameters.values()
    return {x.name: x.default for x in given if x.name not in OF_EVERY}


def if_it_has(*keywords: str) -> Callable[[Any], list[str]]:
    """For recipes with one of these keywords."""
    return lambda recipe: [""] if {*keywords} & {*own(recipe)} else []


def words_and_flags(recipe: Any) -> list[str]:
    """For recipes with words or flags, which other tests leave at their defaults."""
    values = (x for key, x in own(recipe).items() if key not in KERNELS)
    return [""] if any(isinstance(x, bool | str) for x in values) else []


def no_flags(recipe: Any) -> list[str]:
    """The keywords whose other values cannot be guessed."""
    return [key for key, x in own(recipe).items() if not isinstance(x, bool)]


def other_rate(recipe: Any) -> list[str]:
    """For recipes whose AdamW has another learning rate than the matrices."""
    chain = inspect.getsource(inspect.unwrap(recipe))
    return [""] if re.search(r"\bother_rate=", chain) else []


def direction(recipe: Any) -> list[str]:
    """For recipes that are a direction: their learning rate is not inside."""
    has = hasattr(om.recipes, f"scale_by_{recipe.__name__}")
    return [f"scale_by_{recipe.__name__}"] if has else []


def documented(name: str, key: str, file: str) -> bool:
    """The docstring has a paper with a link, the paper's rate, and an example."""
    del key, file
    doc = inspect.getdoc(getattr(om.recipes, name, None)) or ""
    return (
        "<https://" in doc and ">>>" in doc and bool(re.search(r"\d", paper_rate(name)))
    )


ALL, RECIPES, TESTS = "optax_matrix/recipes/__init__.py", "tests/recipes/", "tests/"
CASES = "test_trajectories.py", "test_rotated.py", "test_low_rank_recipes.py"
IN_THE_STUDY = "examples/pretrain/optimizers.py", "examples/study/bench/methods.py"
PLACES = [
    Place([ALL], "the import, and NAME in `__all__`", inside("__all__")),
    Place([ALL], "scale_by_NAME in `__all__`, but for finished steps",
          inside("__all__"), direction),
    Place([ALL], "NAME in a group of `METHODS`", inside("METHODS")),
    Place(["optax_matrix/recipes"],
          "docstring: a link to the paper, its learning rate, an example", documented),
    Place([".docs/methods.md"],
          "a row in its group: | `NAME` | chain | state | [paper](..) |",
          like(r"^\| `NAME` \| .* \| .* \| \[")),
    Place([".docs/when.toml"], "[NAME] with `use` and `avoid`, a sentence each",
          like(r"^\[NAME\]$")),
    Place(["CHANGELOG.md"], "a line under \"Unreleased\"", like(r"`(om\.)?NAME\b")),
    Place(["examples/study/pages/rates.md"],
          "run `python -m examples.study bench table --write`", like(r"`NAME`")),
    Place([RECIPES + file for file in CASES],
          "CASES: against a restatement in tests/_reference", inside()),
    Place([TESTS + "test_contract.py"], "STATE_OF_A_MATRIX: its numbers per matrix",
          inside("STATE_OF_A_MATRIX")),
    Place([TESTS + "record.py"], "VARIANTS: words and flags that are not the default",
          inside("VARIANTS"), words_and_flags),
    Place([TESTS + "examples/test_options.py"], "VALUES: not the default, flags aside",
          inside("VALUES"), no_flags),
    Place([RECIPES + "test_degenerate.py"], "OTHER_RATES, of Method(other_rate=...)",
          inside("OTHER_RATES"), other_rate),
    Place([RECIPES + "test_scaling.py"], "NAME with those that take `scaling`",
          inside(), if_it_has("scaling")),
    # Without these nothing is wrong, but something may be left out.
    Place(IN_THE_STUDY, "OF_ADAMS_SIZE if updates have AdamW's size, else OWN_RATES",
          inside(), may=True),
    Place([".docs/guides/choose.rst"], "a row if it is the one to take for something",
          like(r"/NAME>|`NAME`"), may=True),
    Place([RECIPES + "test_trajectories.py"], "VARIANTS: other flags and numbers",
          inside("VARIANTS"), may=True),
    Place([TESTS + "_registry.py"], "RECIPES: options with another state or chain",
          inside("RECIPES"), may=True),
    Place([RECIPES + "test_identities.py"], "without X it is Y, if that is so",
          inside(), may=True),
    Place([TESTS + "test_contract.py"], "FORGETFUL: rates that forget 1e20 soon",
          inside("FORGETFUL"), if_it_has("b1"), may=True),
]  # fmt: skip


def missing(place: Place, name: str) -> list[str]:
    """What a place lacks of a recipe: names, or all of it; empty if it is whole."""
    recipe = getattr(om.recipes, name, None)
    keys = [""] if recipe is None else place.applies(recipe)
    files = [file for file in place.files if (ROOT / file).exists()]
    there = lambda key: any(place.has(name, key, file) for file in files)
    return [key or name for key in keys if recipe is None or not there(key)]


def lacking(name: str) -> list[Place]:
    """The places that a recipe needs and lacks."""
    return [x for x in PLACES if not x.may and missing(x, name)]


def report(name: str) -> Iterator[str]:
    """A line for each place: what it has and what it lacks."""
    for place in PLACES:
        lacks = missing(place, name)
        sign = "ok" if not lacks else "may" if place.may else "--"
        found = ", ".join(key for key in lacks if key != name)
        what = place.add.replace("NAME", name) + (f" ({found})" if found else "")
        yield f"{sign:3}  {' or '.join(place.files).replace('NAME', name)}: {what}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("name", help="a recipe, or what it will be called")
    given = parser.parse_args().name
    print("\n".join(report(given)))
    sys.exit(bool(lacking(given)))
