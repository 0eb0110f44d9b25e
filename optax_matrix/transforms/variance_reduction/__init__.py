"""Variance reduction: a gradient corrected by its change since the last step (MARS)."""

from optax_matrix.transforms.variance_reduction._correct_variance import (
    CorrectVarianceState,
    correct_variance,
)

__all__ = [
    "CorrectVarianceState",
    "correct_variance",
]
