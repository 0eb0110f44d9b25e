"""Stochastic primitives: weights trained through orthogonal factors only (POET, OFT).

`spo` trains skew-symmetric blocks Q. A map turns them into orthogonal blocks, which
rotate randomly drawn rows and columns of a weight and so preserve its singular values.
At regular intervals the rotations are merged into the weights and new ones are drawn.
`limit_skew_norm` keeps Q small enough for the map to be accurate.
"""

from optax_matrix.transforms.stochastic_primitives._adam_per_matrix import (
    ScaleByAdamPerMatrixState,
    scale_by_adam_per_matrix,
)
from optax_matrix.transforms.stochastic_primitives._blocks import (
    Block,
    Reset,
    RotatedSides,
    Variant,
    relative_size,
    rotated_blocks,
)
from optax_matrix.transforms.stochastic_primitives._limit_skew_norm import (
    bounded,
    kernel_for,
    limit_skew_norm,
    reached,
)
from optax_matrix.transforms.stochastic_primitives._moment_reset import where_due
from optax_matrix.transforms.stochastic_primitives._orthogonal_primitives import (
    Primitives,
)
from optax_matrix.transforms.stochastic_primitives._spo import SpoState, spo

__all__ = [
    "Block",
    "Primitives",
    "Reset",
    "RotatedSides",
    "ScaleByAdamPerMatrixState",
    "SpoState",
    "Variant",
    "bounded",
    "kernel_for",
    "limit_skew_norm",
    "reached",
    "relative_size",
    "rotated_blocks",
    "scale_by_adam_per_matrix",
    "spo",
    "where_due",
]
