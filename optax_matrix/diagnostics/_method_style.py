"""The look of a method's line in a figure."""

import zlib
from typing import Any

_COLORS = {
    "adamw": "#000000",
    "muon": "#0072b2",
    "muoneq": "#d55e00",
    "aro": "#009e73",
    "soap": "#cc79a7",
    "racs": "#e6a000",
    "alice": "#56b4e9",
    "sumo": "#8c564b",
    "poet": "#7b3294",
    "normuon": "#7f7f00",
    "galore": "#7f7f7f",
    "mousse": "#b2182b",
    "fira": "#66a61e",
}
_OTHERS = "#4c72b0", "#dd8452", "#55a868", "#c44e52", "#8172b3", "#937860", "#64b5cd"


def method_style(name: str) -> dict[str, Any]:
    """Color and width of a method's line, the same in every figure.

    The colors of the main methods can be told apart with the usual forms of color
    blindness. AdamW is black and wide, since it is what others are compared with.

    Args:
        name: Name of a recipe, ``"adamw"``, or a name of your own, which always gets
            the same one of seven further colors.

    Returns:
        Keywords of the plotting functions of matplotlib.

    Examples:
        >>> method_style("muoneq")
        {'color': '#d55e00', 'linewidth': 1.5}
    """
    other = _OTHERS[zlib.crc32(name.encode()) % len(_OTHERS)]
    width = 2.5 if name == "adamw" else 1.5
    return {"color": _COLORS.get(name, other), "linewidth": width}
