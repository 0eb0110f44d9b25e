"""Which side of each stack a rotation is on."""

from typing import Literal

from optax_matrix.stacks.layout import Layout

# fmt: off
Orientation = Literal[
    "residual", "out", "in", "short", "prefer_right",
    "except_up", "except_qkv", "except_embeddings",
]
# fmt: on


def oriented_sides(layout: Layout, orientation: Orientation) -> dict[str, str]:
    """The side of each stack that rotates.

    Args:
        layout: The layout, which may know the side of the residual stream.
        orientation: A side; ``"residual"`` or an exception of `oriented` for the
            side of the residual stream, as far as the layout knows it; else the shorter
            side, of equal ones the input (``"prefer_right"``, Fig. 19 of ARO).

    Returns:
        A side of `rotate` for each group.
    """
    if orientation in ("out", "in", "short"):
        return dict.fromkeys(layout.groups, orientation)
    known = orientation != "prefer_right"
    right = lambda group: "in" if group.rows >= group.cols else "out"
    return {n: (known and g.residual) or right(g) for n, g in layout.groups.items()}
