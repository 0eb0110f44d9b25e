"""Which side of each stack rotates or is projected."""

from typing import Literal

from optax_matrix.stacks.layout import Group, Layout


def sides_within(
    layout: Layout,
    side: str,
    max_dim: int | None,
    block_size: int | None = None,
    max_skew: int | None = None,
) -> dict[str, str]:
    """Per stack its sides of at most `max_dim`: a side of `rotate` or ``"none"``.

    With blocks, their sides count. A side is at most `max_skew` times the other one.
    """
    longest = lambda size: size if block_size is None else min(size, block_size)

    def of(group: Group) -> str:
        short = "out" if group.rows <= group.cols else "in"
        wanted = {"both": ("out", "in"), "short": (short,)}.get(side, (side,))
        sizes = {"out": group.rows, "in": group.cols}
        kept = [s for s in wanted if max_dim is None or longest(sizes[s]) <= max_dim]
        if max_skew is not None:
            kept = [s for s in kept if sizes[s] <= max_skew * min(sizes.values())]
        return "both" if len(kept) == 2 else (*kept, "none")[0]

    return {name: of(group) for name, group in layout.groups.items()}


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
        orientation: A side; or ``"residual"`` (or an exception to it) for the side of
            the residual stream, as far as the layout knows it; else the shorter side,
            of equal ones the input (``"prefer_right"``, Fig. 19 of ARO).

    Returns:
        A side of `rotate` for each group.
    """
    if orientation in ("out", "in", "short"):
        return dict.fromkeys(layout.groups, orientation)
    known = orientation != "prefer_right"
    right = lambda group: "in" if group.rows >= group.cols else "out"
    return {n: (known and g.residual) or right(g) for n, g in layout.groups.items()}
