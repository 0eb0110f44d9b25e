"""Ranks: numbers of columns, or fractions of a side."""

import math
import numbers
from typing import Any


def check_rank(name: str, rank: Any) -> None:
    """Raises unless a rank is a positive int or a fraction.

    Args:
        name: The argument's name, for the message.
        rank: The value, static.

    Raises:
        ValueError: If it is neither.
    """
    is_number = isinstance(rank, numbers.Real) and not isinstance(rank, bool)
    size = float(rank) if is_number else 0.0
    if not (0 < size <= 1 if _is_fraction(rank) else size > 0):
        raise ValueError(
            f"`{name}` must be a positive int, or a float in (0, 1] for a fraction, "
            f"got {rank!r}; pass 1.0 for all."
        )


def rank_of(rank: Any, whole: int) -> int:
    """The number that a rank stands for.

    Args:
        rank: An int, or a float for a fraction of ``whole``, rounded up.
        whole: The largest number possible.

    Returns:
        An int of at least one and at most ``whole``.
    """
    number = math.ceil(rank * whole) if _is_fraction(rank) else int(rank)
    return min(number, whole)


def _is_fraction(rank: Any) -> bool:
    """Whether it is a real number, NumPy's too, and no integer."""
    return isinstance(rank, numbers.Real) and not isinstance(rank, numbers.Integral)
