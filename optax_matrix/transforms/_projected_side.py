"""Which side of every matrix a subspace is of; there it is the rows."""

from typing import Any

import jax

from optax_matrix.transforms._checks import check_choice

SIDES = ("out", "in", "short", "long")


def check_projected_side(side: Any) -> None:
    """Raises unless a side is a name, or a dict of names.

    Args:
        side: As in `project_low_rank`.

    Raises:
        ValueError: If it is something else.
    """
    for name in side.values() if isinstance(side, dict) else [side]:
        check_choice("side", name, SIDES)


def turn(transposed: bool, x: jax.Array) -> jax.Array:
    """Brings the projected side to the rows, or back.

    Args:
        transposed: What `turned_sides` says.
        x: Matrices ``(..., m, n)``.

    Returns:
        The same, or their transposes.
    """
    return x.mT if transposed else x


def turned_sides(side: Any, tree: Any) -> Any:
    """Whether the projected side of every leaf is its columns.

    Args:
        side: As in `project_low_rank`.
        tree: A tree of matrices ``(..., m, n)``.

    Returns:
        A tree of bools.

    Raises:
        ValueError: If a side is missing.
    """
    if isinstance(side, str):
        return jax.tree.map(lambda x: _is_turned(side, x.shape), tree)
    if not isinstance(tree, dict) or set(tree) - set(side):
        raise ValueError(
            f"`side` must be one of {', '.join(SIDES)}, or a dict with one of them for "
            f"each leaf, got {side!r} for {jax.tree.structure(tree)}."
        )
    return {name: _is_turned(side[name], x.shape) for name, x in tree.items()}


def _is_turned(side: str, shape: tuple[int, ...]) -> bool:
    rows, cols = shape[-2:]
    return {"out": False, "in": True, "short": rows > cols, "long": rows < cols}[side]
