"""Docstrings that derive from one another, section by section."""

import re
from collections.abc import Collection, Mapping

_SECTION = re.compile(r"^(Args|Returns|Raises|Examples|References):\n", re.MULTILINE)
_ENTRY = re.compile(r"^    (?=\w+: )", re.MULTILINE)
_DIRECTION = """\
The update of `{name}` for the matrices of a tree; other leaves pass through unchanged.

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
    _, *entries = _ENTRY.split(parts.pop("Args"))
    kept = [e.rstrip() for e in entries if e.partition(":")[0] in names]
    returns = {"Returns": parts.pop("Returns")}
    raises = {"Raises": "    ValueError: If an argument is out of range."}
    return rendered(
        {
            "": parts.pop(""),
            "Args": "\n".join(f"    {entry}" for entry in kept),
            **returns,
            **raises,
            **parts,
        }
    )


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
