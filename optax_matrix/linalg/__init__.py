"""Kernels: pure functions on matrices ``(..., m, n)``.

They know arrays and nothing else: no trees, no optimizer state. Every kernel returns
the dtype of its input, works in float32 (float64 for float64 input), does not depend
on the scale of its input, and gives zero for a zero matrix; except the statistics of
`rank_one_scales`, which are at least float32, and of which ``col`` has the scale of the
input. A polar kernel is any
function from matrices to matrices, so that `orthogonalize(polar=...)` takes each.
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
from optax_matrix.linalg._equilibrate import (
    rank_one_scales,
    scale_columns,
    scale_rows,
    scale_rows_and_columns,
    sinkhorn,
    standardize_rows,
)
from optax_matrix.linalg._newton_schulz import gram_newton_schulz, newton_schulz
from optax_matrix.linalg._polar import polar_eigh, polar_qdwh, polar_qr, polar_svd

__all__ = [
    "AOL",
    "CUBIC",
    "JORDAN",
    "POLAR_EXPRESS",
    "TAYLOR",
    "YOU",
    "cans",
    "gram_newton_schulz",
    "newton_schulz",
    "polar_eigh",
    "polar_express",
    "polar_qdwh",
    "polar_qr",
    "polar_svd",
    "rank_one_scales",
    "scale_columns",
    "scale_rows",
    "scale_rows_and_columns",
    "sinkhorn",
    "standardize_rows",
]
