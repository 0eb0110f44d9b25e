"""Which side of each stack rotates or is projected."""

from optax_matrix.stacks.layout import Group, Layout


def sides_within(layout: Layout, side: str, max_dim: int | None) -> dict[str, str]:
    """The sides of each stack that are not too large for a square matrix of state.

    Args:
        layout: The layout.
        side: ``"both"``, ``"out"``, ``"in"`` or ``"short"``.
        max_dim: Size above which a side is left out; None for no bound.

    Returns:
        A side of `rotate`, or ``"none"``, for each group.
    """

    def of(group: Group) -> str:
        short = "out" if group.rows <= group.cols else "in"
        wanted = {"both": ("out", "in"), "short": (short,)}.get(side, (side,))
        sizes = {"out": group.rows, "in": group.cols}
        kept = [s for s in wanted if max_dim is None or sizes[s] <= max_dim]
        return "both" if len(kept) == 2 else (*kept, "none")[0]

    return {name: of(group) for name, group in layout.groups.items()}
