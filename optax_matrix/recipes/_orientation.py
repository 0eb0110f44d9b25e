"""Which side of each stack a recipe rotates."""

from optax_matrix.arguments import check_choice
from optax_matrix.layout import Group, Layout

ORIENTATIONS = ("residual", "out", "in", "short")


def sides(layout: Layout, orientation: str) -> dict[str, str]:
    """The side of each stack that rotates.

    Args:
        layout: The layout, which may know the side of the residual stream.
        orientation: One of `ORIENTATIONS`; ``"residual"`` is the shorter side where
            the layout does not know better.

    Returns:
        A side of `rotate` for each group.
    """
    known = {
        n: g.residual if orientation == "residual" else orientation
        for n, g in layout.groups.items()
    }
    return {name: side or "short" for name, side in known.items()}


def sides_within(layout: Layout, side: str, max_dim: int | None) -> dict[str, str]:
    """The sides of each stack that are worth a square matrix.

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


def check_eigen_policy(policy: str) -> None:
    """Raises unless a policy takes the basis from the momentum alone.

    Args:
        policy: The policy.

    Raises:
        ValueError: If it is another.
    """
    check_choice("policy", policy, ("eigen", "eigen_exact"))
