r"""Orthogonalization: a matrix replaced by its polar factor, :math:`U V^\top`.

All singular values become one (Muon). The kernel decides how exactly and at which cost:
`linalg.newton_schulz`, `linalg.polar_svd` and others of `linalg`. For an
orthogonalization of low rank see `orthogonalize_low_rank` (Dion).
"""

from optax_matrix.transforms.orthogonalization._orthogonalize import orthogonalize

__all__ = [
    "orthogonalize",
]
