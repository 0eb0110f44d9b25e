"""Docstrings that derive from one another, section by section."""

import re
from collections.abc import Collection, Mapping

_SECTION = re.compile(r"^(Args|Returns|Raises|Examples|References):\n", re.MULTILINE)
_ENTRY = re.compile(r"^    (?=\w+: )", re.MULTILINE)
_DIRECTION = """\
The update of `{name}` for matrices; other leaves pass through unchanged.

{notes}"""
_CHAIN = """\
    >>> import optax
    >>> import optax_matrix as om
    >>> step = optax.scale_by_learning_rate(1e-3)
    >>> tx = optax.chain(om.scale_by_{name}(), step)"""


def sections(doc: str) -> dict[str, str]:
    """The sections of a docstring by name; ``""`` is the part above the first."""
    head, *rest = _SECTION.split(doc)
    found = dict(zip(rest[::2], rest[1::2], strict=True))
    return {name: text.rstrip() for name, text in {"": head, **found}.items()}


def rendered(parts: Mapping[str, str]) -> str:
    """The inverse of `sections`."""
    return "\n\n".join(
        f"{name}:\n{text}" if name else text for name, text in parts.items()
    )


def with_arguments(doc: str, names: Collection[str]) -> str:
    """A docstring with the entries of these arguments alone, and what it may raise."""
    parts = sections(doc)
    kept = {name: text for name, text in _entries(doc).items() if name in names}
    return rendered(
        {
            "": parts.pop(""),
            "Args": _listed(kept),
            "Returns": parts.pop("Returns", "    An optimizer of the whole tree."),
            "Raises": "    ValueError: If an argument is out of range.",
            **{name: text for name, text in parts.items() if name != "Args"},
        }
    )


def of_preset(doc: str, base: str) -> str:
    """The docstring of a variant; entries that it lacks are those of `base`."""
    return rendered({**sections(doc), "Args": _listed(_entries(base) | _entries(doc))})


def of_direction(doc: str, name: str) -> str:
    """The docstring of ``scale_by_name``, made from that of the optimizer ``name``."""
    parts = sections(doc)
    _, _, notes = parts[""].partition("\n\n")
    changes = {
        "": _DIRECTION.format(name=name, notes=notes).rstrip(),
        "Returns": "    A transformation, without learning rate and weight decay.",
        "Examples": _CHAIN.format(name=name),
    }
    return rendered({**parts, **changes})


def _entries(doc: str) -> dict[str, str]:
    """The entries of ``Args`` by the name of the argument."""
    _, *entries = _ENTRY.split(sections(doc).get("Args", ""))
    return {entry.partition(":")[0]: entry.rstrip() for entry in entries}


def _listed(entries: Mapping[str, str]) -> str:
    return "\n".join(f"    {entry}" for entry in entries.values())
