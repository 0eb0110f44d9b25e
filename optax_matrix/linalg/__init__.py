"""Kernels: pure functions on matrices ``(..., m, n)``.

They know arrays and nothing else: no trees, no optimizer state. Every kernel returns
the dtype of its input, works in float32 (float64 for float64 input), does not depend
on the scale of its input, and gives zero for a zero matrix; except that what is held in
a state is at least float32 and may have a scale (`rank_one_scales`, `eigenbasis`,
`rayleigh_quotients`, `inverse_root`), and that a new basis from a zero matrix is the
previous one. A polar kernel is any function from matrices to matrices, so that
`orthogonalize(polar=...)` takes each; an `Orthonormalize` is any from columns to
orthonormal columns.
"""

from optax_matrix.linalg._coefficients import (
    AOL,
    CUBIC,
    JORDAN,
    POLAR_EXPRESS,
    TAYLOR,
    YOU,
    cans,
    polar_express,
)
from optax_matrix.linalg._eigenbasis import eigenbasis
from optax_matrix.linalg._equilibrate import (
    rank_one_scales,
    scale_columns,
    scale_rows,
    scale_rows_and_columns,
    sinkhorn,
    standardize_rows,
)
from optax_matrix.linalg._inverse_root import inverse_root
from optax_matrix.linalg._newton_schulz import gram_newton_schulz, newton_schulz
from optax_matrix.linalg._orthonormalize import (
    Orthonormalize,
    cholesky_qr,
    qr_householder,
)
from optax_matrix.linalg._polar import polar_eigh, polar_qdwh, polar_qr, polar_svd
from optax_matrix.linalg._rotations import (
    cross_gram,
    power_step,
    project_tangent,
    qr_retraction,
    rayleigh_quotients,
)

__all__ = [
    "AOL",
    "CUBIC",
    "JORDAN",
    "POLAR_EXPRESS",
    "TAYLOR",
    "YOU",
    "Orthonormalize",
    "cans",
    "cholesky_qr",
    "cross_gram",
    "eigenbasis",
    "gram_newton_schulz",
    "inverse_root",
    "newton_schulz",
    "polar_eigh",
    "polar_express",
    "polar_qdwh",
    "polar_qr",
    "polar_svd",
    "power_step",
    "project_tangent",
    "qr_householder",
    "qr_retraction",
    "rank_one_scales",
    "rayleigh_quotients",
    "scale_columns",
    "scale_rows",
    "scale_rows_and_columns",
    "sinkhorn",
    "standardize_rows",
]
