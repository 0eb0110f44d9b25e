"""The one question about what use does not tell, with the answer to paste."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from optax_matrix.matrices.use.answers import short

_LAYER = re.compile(r"\d+")


class UnclearUseWarning(UserWarning):
    """The use of parameters does not tell what they are; `by_use` gives it."""


class ChangedUseWarning(UserWarning):
    """A model uses parameters in another way than the ``table`` of `by_use`."""


class Open(NamedTuple):
    """One parameter that is asked about, with the numbers that it has so far."""

    path: str
    shape: tuple[int, ...]
    reason: str
    numbers: Any


def question(asked: Iterable[Open], paths: Iterable[str]) -> str | None:
    """The question, or None if nothing is open; ``paths`` are those of all leaves.

    Alike parameters of numbered layers are asked about together.
    """
    alike: dict[Any, list[Open]] = {}
    for one in asked:
        key = _LAYER.sub("#", one.path), one.shape, one.reason, one.numbers
        alike.setdefault(key, []).append(one)
    if not alike:
        return None
    rows = [row for group in alike.values() for row in _rows(group, tuple(paths))]
    return "\n".join(
        [
            "The forward pass does not show what these parameters are. Pass this "
            "argument to by_use,\ncorrected where it is wrong. Axes of inputs come "
            "first; None is for the other optimizer:",
            "  numbers={",
            *(f"      {row}" for row in rows),
            "  }",
        ]
    )


def _rows(group: list[Open], paths: tuple[str, ...]) -> list[str]:
    if len(group) > 1:
        parts = map(re.escape, _LAYER.split(group[0].path))
        pattern = "^" + r"\d+".join(parts) + "$"
        meant = {one.path for one in group}
        if {path for path in paths if re.search(pattern, path)} == meant:
            return [_row(pattern, group[0], f"{len(group)} of ")]
    return [_row("^" + re.escape(one.path) + "$", one, "") for one in group]


def _row(pattern: str, one: Open, count: str) -> str:
    quoted = repr(pattern)
    if "'" not in pattern and "\n" not in pattern:
        quoted = f"r'{pattern}'"
    value = one.numbers and f"om.MatrixDimensionNumbers{short(one.numbers)}"
    return f"{quoted}: {value},  # {count}{one.shape}: {' '.join(one.reason.split())}"


def changes(new: Mapping[str, Any], table: Mapping[str, Any]) -> str | None:
    """One sentence on where a table differs from what is read now; None if nowhere."""
    changed = [p for p, x in new.items() if x != table.get(p)]
    if not changed:
        return None
    says = lambda x: "no matrix" if x is None else short(x)
    said = lambda p: says(table[p]) if p in table else "not at all"
    shown = [f"{p} {said(p)}, now {says(new[p])}" for p in changed[:3]]
    more = f", and {len(changed) - 3} more" if len(changed) > 3 else ""
    return (
        f"The model uses parameters in another way than `table`: {'; '.join(shown)}"
        f"{more}. The table is used, since a saved state would not fit otherwise."
    )
