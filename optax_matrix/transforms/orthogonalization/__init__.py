r"""Orthogonalization: replacing a matrix by its polar factor, :math:`U V^\top`.

All singular values become one (Muon). The kernel determines accuracy and cost:
`linalg.newton_schulz`, `linalg.polar_svd` and others in `linalg`. For low-rank
orthogonalization see `orthogonalize_low_rank` (Dion). `orthogonalize_selected` does it
for the largest rows of a momentum (Dion2).
"""

from optax_matrix.transforms.orthogonalization._orthogonalize import orthogonalize
from optax_matrix.transforms.orthogonalization._orthogonalize_selected import (
    OrthogonalizeSelectedState,
    orthogonalize_selected,
)

__all__ = [
    "OrthogonalizeSelectedState",
    "orthogonalize",
    "orthogonalize_selected",
]
