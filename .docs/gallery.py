"""A page per method: paper, chain, state, formula, runs, arguments.

Paper, chain and state come from `methods.md`, formula and arguments from the
docstring, curves, spectra and rates from the committed runs, and when to use a method
from `when.toml`. Nothing is typed twice.
"""

import inspect
import re
import shutil
from pathlib import Path
from typing import Any

import copies
import facts
import measured
import names
import runs
from reference import entry, linked
from rst import Table, title

import optax_matrix as om

HERE = Path(__file__).parent
FOLDER = HERE / "gallery"


def setup(app: Any) -> dict[str, Any]:
    """Connects the pages, and drops from docstrings what stands above them."""
    app.connect("builder-inited", write_pages)
    app.connect("autodoc-process-docstring", drop_description, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def write_pages(app: Any) -> None:
    """Writes the index and all pages."""
    del app
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    table, public = facts.methods(), {item.path: item for item in names.public_names()}
    for group, recipes in om.recipes.METHODS.items():
        for recipe in recipes:
            name = recipe.__name__
            text = _page(name, group, table[name], public)
            (FOLDER / f"{name}.rst").write_text(text)
    (FOLDER / "index.rst").write_text(_index(table))


def _index(table: dict[str, facts.Facts]) -> str:
    lines = [
        title("Gallery of methods"),
        "Each page has the formula, the chain of blocks, the state, the paper, the",
        "comparison with a tuned AdamW, spectra, and all arguments. The first study,",
        "whose AdamW has one rate, is at the end of each page. :doc:`Choose a method",
        "</guides/choose>` says which one to start with.",
        "",
        "``om.<name>(learning_rate, ...)`` optimizes a whole parameter tree: matrices",
        "by the method, all other leaves by AdamW or by what ``other=`` gives.",
        "``om.scale_by_<name>(...)`` is the method alone, for chains.",
        "",
        title("The five papers", "-"),
    ]
    for paper, methods in facts.FIVE.items():
        links = ", ".join(f":doc:`{name} <{name}>`" for name in methods)
        source = table[methods[0]].source.partition("__")[0] + "__"  # The link alone.
        lines += [f"* **{paper}**: {links}. Paper: {source}"]
    lines.append("")
    for group, recipes in om.recipes.METHODS.items():
        chosen = [recipe.__name__ for recipe in recipes]
        rows = [[f":doc:`{n} <{n}>`", table[n].chain, table[n].state] for n in chosen]
        lines += [
            title(group, "-"),
            Table(("method", "chain", "state"), rows, "words").rst(),
        ]
    first = [name for methods in facts.FIVE.values() for name in methods]
    every = first + [name for name in runs.METHODS if name not in first]
    lines += [
        "State counts values per m x n matrix, m ≤ n, without the weights and a few",
        "scalars; ``out`` and ``in`` are its sides, p is the rotated one, r the rank.",
        "POET with blocks of side b trains t = (m + n)(b - 1)/2 numbers, OFT",
        "t = in (b - 1)/2.",
        "",
        ".. toctree::",
        "   :hidden:",
        "",
        *(f"   {name}" for name in every),
    ]
    return "\n".join(lines) + "\n"


def _page(
    name: str, group: str, known: facts.Facts, public: dict[str, names.Public]
) -> str:
    recipe, path = getattr(om, name), f"optax_matrix.recipes.{name}"
    first, _, formula = _description(inspect.getdoc(recipe) or "").partition("\n\n")
    when = facts.WHEN[name]
    lines = [
        title(name),
        linked(first, recipe, path),
        "",
        f":Paper: {known.source}",
        f":Group: {group}",
        f":Chain: {known.chain}",
        f":State: {known.state} per m x n matrix, m ≤ n",
        f":When: {linked(when['use'], recipe, path)}",
        f":When not: {linked(when['avoid'], recipe, path)}",
        "",
        title("Formula", "-"),
        linked(formula, recipe, path),
        "",
        *measured.losses(name),
        *measured.spectrum(name),
        *_notebooks(name),
        title("Arguments", "-"),
        entry(public[path]),
    ]
    if alone := public.get(f"optax_matrix.recipes.scale_by_{name}"):
        lines += [title("The method alone, for chains", "-"), entry(alone)]
    lines += measured.first_study(name)
    return "\n".join(lines) + "\n"


def _description(docstring: str) -> str:
    """A docstring up to its first section."""
    return re.split(r"\n\n(?=Args:\n)", docstring)[0].strip()


def drop_description(
    app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]
) -> None:
    """Leaves out of a recipe's entry what stands at the top of its page."""
    del what, name, value, options
    if app.env.current_document.docname.startswith("gallery/") and "Args:" in lines:
        head = lines[: lines.index("Args:")]
        is_recipe = not any("other leaves pass through" in line for line in head)
        if is_recipe:
            del lines[: len(head)]


def _notebooks(name: str) -> list[str]:
    """The notebooks whose code or text names the method."""
    found = [path for path in copies.NOTEBOOKS if _names(path, name)]
    if not found:
        return []
    links = ", ".join(f":doc:`{copies.page_of_notebook(path)}`" for path in found)
    return [title("In the notebooks", "-"), links, ""]


def _names(path: Path, name: str) -> bool:
    return bool(re.search(rf"\bom\.(scale_by_)?{name}\b|\"{name}\"", path.read_text()))
