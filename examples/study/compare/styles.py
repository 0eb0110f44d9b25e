"""How methods look in a picture: each has the color that it has in every figure."""

from collections.abc import Sequence
from typing import Any

from optax_matrix.diagnostics import method_style

_LINES = "-", "--", ":", "-."


def styles(names: Sequence[str]) -> list[dict[str, Any]]:
    """Keywords of matplotlib for lines of a picture.

    A name may have options (``muon:b1=0.9``), which do not change its color. Names of
    one color have different lines, in their order here.

    >>> [style["linestyle"] for style in styles(["muon", "aro", "muon:b1=0.9"])]
    ['-', '-', '--']
    """
    found: list[dict[str, Any]] = []
    for name in names:
        style = method_style(name.partition(":")[0])
        same = sum(style["color"] == one["color"] for one in found)
        found.append(style | {"linestyle": _LINES[same % len(_LINES)]})
    return found
