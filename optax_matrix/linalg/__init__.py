"""Kernels: pure functions on matrices ``(..., m, n)``.

They act on arrays alone: no parameter trees, no optimizer state. Every kernel

- returns the dtype of its input and computes in float32 (float64 for float64 input),
- gives a result that does not depend on the scale of its input,
- maps a zero matrix to zero.

There are three exceptions. Results that are kept in an optimizer state are at least
float32 and may depend on the scale (`rank_one_scales`, `eigenbasis`,
`rayleigh_quotients`, `inverse_root`). A new basis computed from a zero matrix is the
previous basis. `shifted_cholesky_qr` has an absolute shift, so its result depends on
the scale.

Kernels have derivatives, in reverse mode too. Those with loops or decompositions have
that of the function that they approximate (``cholesky_qr(passes=1)``: of the exact Q).
Where there is none, the derivative stays finite: dependent columns count as constants,
singular values that a kernel cuts off stay cut off, and eigenvectors of equal
eigenvalues do not turn into one another.

A polar kernel is any function from matrices to matrices, and `orthogonalize(polar=...)`
accepts all of them. An `Orthonormalize` is any function from columns to orthonormal
columns.
"""

from optax_matrix._arguments import KERNELS
from optax_matrix.linalg._balanced_polar import balanced_polar
from optax_matrix.linalg._coefficients import (
    AOL,
    CUBIC,
    JORDAN,
    POLAR_EXPRESS,
    TAYLOR,
    YOU,
    cans,
    polar_express,
    rows_for,
)
from optax_matrix.linalg._complement import complement_columns, complement_subspace
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
from optax_matrix.linalg._orthogonal import (
    Orthogonal,
    cayley,
    cayley_neumann,
    cayley_taylor,
    exponential,
    inverse_of_orthogonal,
    orthogonality_error,
)
from optax_matrix.linalg._orthonormalize import (
    Orthonormalize,
    cholesky_qr,
    qr_householder,
)
from optax_matrix.linalg._permutations import draw_permutations, permute, unpermute
from optax_matrix.linalg._permuted_blocks import (
    block_grid,
    free_entries,
    materialize,
    recover_frame,
    rotate_columns,
    rotate_rows,
    rotate_sides,
)
from optax_matrix.linalg._polar import polar_eigh, polar_qdwh, polar_qr, polar_svd
from optax_matrix.linalg._quantize import dequantize, quantize
from optax_matrix.linalg._rotations import (
    cross_gram,
    power_step,
    project_tangent,
    qr_retraction,
    rayleigh_quotients,
)
from optax_matrix.linalg._shifted_cholesky_qr import shifted_cholesky_qr
from optax_matrix.linalg._skew import (
    from_skew,
    skew_norm,
    to_skew,
    triangle_side,
    triangle_size,
)
from optax_matrix.linalg._subspace import (
    left_vectors,
    overlap,
    randomized_left_vectors,
    range_finder,
    subspace_iteration,
)

KERNELS.update(
    polar={
        f.__name__: f
        for f in (
            *(newton_schulz, gram_newton_schulz, polar_svd, polar_eigh),
            *(polar_qr, polar_qdwh),
        )
    },
    qr={f.__name__: f for f in (cholesky_qr, shifted_cholesky_qr, qr_householder)},
    orthogonal={
        f.__name__: f for f in (cayley, cayley_neumann, cayley_taylor, exponential)
    },
)

__all__ = [
    "AOL",
    "CUBIC",
    "JORDAN",
    "POLAR_EXPRESS",
    "TAYLOR",
    "YOU",
    "Orthogonal",
    "Orthonormalize",
    "balanced_polar",
    "block_grid",
    "cans",
    "cayley",
    "cayley_neumann",
    "cayley_taylor",
    "cholesky_qr",
    "complement_columns",
    "complement_subspace",
    "cross_gram",
    "dequantize",
    "draw_permutations",
    "eigenbasis",
    "exponential",
    "free_entries",
    "from_skew",
    "gram_newton_schulz",
    "inverse_of_orthogonal",
    "inverse_root",
    "left_vectors",
    "materialize",
    "newton_schulz",
    "orthogonality_error",
    "overlap",
    "permute",
    "polar_eigh",
    "polar_express",
    "polar_qdwh",
    "polar_qr",
    "polar_svd",
    "power_step",
    "project_tangent",
    "qr_householder",
    "qr_retraction",
    "quantize",
    "randomized_left_vectors",
    "range_finder",
    "rank_one_scales",
    "rayleigh_quotients",
    "recover_frame",
    "rotate_columns",
    "rotate_rows",
    "rotate_sides",
    "rows_for",
    "scale_columns",
    "scale_rows",
    "scale_rows_and_columns",
    "shifted_cholesky_qr",
    "sinkhorn",
    "skew_norm",
    "standardize_rows",
    "subspace_iteration",
    "to_skew",
    "triangle_side",
    "triangle_size",
    "unpermute",
]
