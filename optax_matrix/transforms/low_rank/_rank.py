"""Ranks, given as a number of columns or as a fraction of a side."""

import math
import numbers
from typing import Any


def check_rank(name: str, rank: Any) -> None:
    """Raises unless a rank is a positive int or a fraction.

    Args:
        name: Name of the argument, for the message.
        rank: The value, static.

    Raises:
        ValueError: If it is neither.
    """
    is_number = isinstance(rank, numbers.Real) and not isinstance(rank, bool)
    size = float(rank) if is_number else 0.0
    if not (0 < size <= 1 if _is_fraction(rank) else size > 0):
        raise ValueError(
            f"`{name}` must be a positive int, or a float in (0, 1] for a fraction, "
            f"got {rank!r}; pass 1.0 for full rank."
        )


def rank_of(rank: Any, whole: int) -> int:
    """The number of columns that a rank means.

    Args:
        rank: An int, or a float for a fraction of ``whole``, rounded up.
        whole: The largest number possible.

    Returns:
        An int between one and ``whole``.
    """
    number = math.ceil(rank * whole) if _is_fraction(rank) else int(rank)
    return min(number, whole)


def _is_fraction(rank: Any) -> bool:
    """Whether a rank is a real number, also one of NumPy, but not an integer."""
    return isinstance(rank, numbers.Real) and not isinstance(rank, numbers.Integral)
