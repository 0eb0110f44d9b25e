r"""Orthogonalization: replacing a matrix by its polar factor, :math:`U V^\top`.

All singular values become one (Muon). The kernel determines accuracy and cost:
`linalg.newton_schulz`, `linalg.polar_svd` and others in `linalg`. For low-rank
orthogonalization see `orthogonalize_low_rank` (Dion) and `orthogonalize_selected`
(Dion2).
"""

from optax_matrix.transforms.orthogonalization._orthogonalize import (
    orthogonalize as orthogonalize,
)
from optax_matrix.transforms.orthogonalization._orthogonalize_balanced import (
    orthogonalize_balanced as orthogonalize_balanced,
)
