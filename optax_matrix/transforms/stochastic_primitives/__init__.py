"""Stochastic primitives: weights that move by orthogonal factors only (POET, OFT).

`spo` trains skew-symmetric blocks Q; orthogonal blocks made of them rotate rows and
columns that are drawn at random, so that singular values stay as they are. From time to
time the rotations are merged into the weights and others are drawn. `limit_skew_norm`
keeps Q small enough for the map from Q to the rotation to be accurate.
"""

from optax_matrix.transforms.stochastic_primitives._blocks import (
    Block,
    Reset,
    RotatedSides,
    Variant,
    rotated_blocks,
)
from optax_matrix.transforms.stochastic_primitives._limit_skew_norm import (
    bound_for,
    limit_skew_norm,
)
from optax_matrix.transforms.stochastic_primitives._orthogonal_primitives import (
    Primitives,
)
from optax_matrix.transforms.stochastic_primitives._spo import SpoState, spo

__all__ = [
    "Block",
    "Primitives",
    "Reset",
    "RotatedSides",
    "SpoState",
    "Variant",
    "bound_for",
    "limit_skew_norm",
    "rotated_blocks",
    "spo",
]
