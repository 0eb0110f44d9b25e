"""Which side of each stack a recipe rotates."""

from optax_matrix.layout import Layout
from optax_matrix.transforms._checks import check_choice

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


def check_eigen_policy(policy: str) -> None:
    """Raises unless a policy takes the basis from the momentum alone.

    Args:
        policy: The policy.

    Raises:
        ValueError: If it is another.
    """
    check_choice("policy", policy, ("eigen", "eigen_exact"))
