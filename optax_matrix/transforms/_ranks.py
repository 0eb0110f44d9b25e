"""Ranks: numbers of columns, or fractions of a side."""

import math
from typing import Any

import numpy as np

from optax_matrix.transforms._checks import check_positive_int


def check_rank(name: str, rank: Any) -> None:
    """Raises unless a rank is a positive int or a fraction.

    Args:
        name: The argument's name, for the message.
        rank: The value, static.

    Raises:
        ValueError: If it is neither.
    """
    if not isinstance(rank, float | np.floating):
        check_positive_int(name, rank)
    elif not 0 < rank <= 1:
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
    fraction = isinstance(rank, float | np.floating)
    return min(math.ceil(rank * whole) if fraction else int(rank), whole)
