"""Variance reduction: the gradient plus a multiple of its last change (MARS)."""

from optax_matrix.transforms.variance_reduction._correct_variance import (
    correct_variance as correct_variance,
)
