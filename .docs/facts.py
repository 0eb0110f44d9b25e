"""What `methods.md`, `when.toml` and pyproject say, for pages. It needs no Sphinx."""

import re
import tomllib
from pathlib import Path
from typing import NamedTuple

from rst import Table, from_markdown

HERE = Path(__file__).parent
ROOT = HERE.parent
WHEN: dict[str, dict[str, str]] = tomllib.loads((HERE / "when.toml").read_text())
_ROW = re.compile(r"^\| `(\w+)` \| (.*) \| (.*) \| (\[.*) \|$", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]+)\]\(([^)]+)\)([^\[]*)")
SHOWN = "jax", "optax", "flax", "orbax-checkpoint"  # Versions.

FIVE = {  # The papers that the library was written for.
    "MuonEq": ["muoneq"],
    "ARO": ["aro"],
    "Structured Fisher: RACS and Alice": ["racs", "alice"],
    "SUMO": ["sumo"],
    "POET": ["poet"],
}


class Facts(NamedTuple):
    """A row of `methods.md`, as reStructuredText."""

    chain: str
    state: str
    source: str


def methods() -> dict[str, Facts]:
    """The table of all methods by name."""
    return {name: Facts(*map(from_markdown, cells)) for name, *cells in _rows()}


def _rows() -> list[tuple[str, ...]]:
    return _ROW.findall((HERE / "methods.md").read_text())


def papers() -> Table:
    """The papers, with their methods."""
    found: dict[str, tuple[str, list[str]]] = {}
    for name, _, _, source in _rows():
        for label, address, _ in _LINK.findall(source)[:1]:
            found.setdefault(address, (label, []))[1].append(
                f":doc:`{name} </gallery/{name}>`"
            )
    rows = [
        [f"`{label} <{address}>`__", ", ".join(names)]
        for address, (label, names) in found.items()
    ]
    return Table(("paper", "methods"), rows, "words")


def versions() -> Table:
    """The lowest supported versions."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["examples"]]
    lowest = dict(one.split(">=") for one in needed if ">=" in one)
    rows = [["Python", project["requires-python"].removeprefix(">=")]]
    rows += [[name, lowest[name]] for name in SHOWN]
    return Table(("package", "from version"), rows)


def when() -> Table:
    """When to take each method, and when not."""
    rows = [
        [f":doc:`{name} </gallery/{name}>`", one["use"], one["avoid"]]
        for name, one in WHEN.items()
    ]
    return Table(("method", "when", "when not"), rows, "words")
