"""Norm balls: the direction of steepest descent under a norm."""

from optax_matrix.transforms.norm_balls._lmo import (
    BallNorm as BallNorm,
    EndNorm as EndNorm,
    lmo as lmo,
)
