"""Ranks, given as a number of columns or as a fraction of a side."""

import math
import numbers
from typing import Any


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
