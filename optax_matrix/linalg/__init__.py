"""Kernels: pure functions on matrices ``(..., m, n)``.

They take and return arrays only: no parameter trees, no optimizer state. Every kernel

- returns the dtype of its input and computes in float32 (float64 for float64 input),
- has a result that does not depend on the scale of its input,
- maps a zero matrix to zero.

There are three exceptions. Results that are kept in an optimizer state are at least
float32 and may depend on the scale (`rank_one_scales`, `eigenbasis`, `inverse_root`). A
new basis computed from a zero matrix is the previous basis, or some basis. Maps from
skew-symmetric matrices to rotations (`cayley` and the like) depend on the scale and map
zero to the identity.

Kernels have derivatives, in reverse mode too. A kernel with a loop or a decomposition
has the derivative of the function that it approximates (``cholesky_qr(passes=1)``: of
the exact Q). Where that function is not differentiable, the derivative stays finite
(``_derivatives``).

The files, from simple to compound:

=============================  =========================================================
``scale``, ``products``,       norms that neither overflow nor vanish; products at three
``random``                     precisions; draws with a key for each matrix
``devices``, ``precision``,    what devices can do; the products of a policy;
``lapack``                     decompositions that do not deadlock a CPU
``_equilibrate``,              rows and columns of equal size
``_sinkhorn``
``coefficients``,              polynomials that map singular values to one; the steps of
``quintic_steps``,             Newton-Schulz; the iteration, and its kernels for Hopper
``_newton_schulz``,            GPUs
``pallas``
``_triangular``,               quotients by Cholesky factors; repeated Cholesky QR; the
``_cholesky_passes``,          Q of a QR, by these or by reflections
``_orthonormalize``
``_polar_by_products``,        exact polar factors, and the SVD
``_svd``, ``_polar``
``spectral_norms``,            bounds on norms; eigenvectors (on TPUs by Jacobi
``_block_jacobi``,             rotations of blocks); inverse roots of Gram matrices
``_eigenbasis``,
``_inverse_root``
``_subspace``,                 bases of leading vectors, and of what they leave out;
``complement``, ``rotations``  rotations from momenta
``skew``, ``_orthogonal``,     skew-symmetric to orthogonal blocks, applied to permuted
``permuted_blocks``            rows and columns
``_derivatives``               derivatives of kernels whose loops JAX cannot
                               differentiate
=============================  =========================================================

A polar kernel is any function from matrices to matrices, and `orthogonalize(polar=...)`
accepts all of them. An `Orthonormalize` is any function from columns to orthonormal
columns.
"""

from optax_matrix._arguments import KERNELS
from optax_matrix.linalg._eigenbasis import eigenbasis
from optax_matrix.linalg._equilibrate import (
    rank_one_scales,
    scale_columns,
    scale_rows,
    scale_rows_and_columns,
    standardize_rows,
)
from optax_matrix.linalg._inverse_root import (
    as_root as as_root,
    check_newton as check_newton,
    inverse_root,
)
from optax_matrix.linalg._newton_schulz import gram_newton_schulz, newton_schulz
from optax_matrix.linalg._orthogonal import (
    Orthogonal,
    cayley,
    cayley_neumann,
    cayley_taylor,
    exponential,
)
from optax_matrix.linalg._orthonormalize import (
    Orthonormalize,
    cholesky_qr,
    qr_householder,
)
from optax_matrix.linalg._polar import (
    balanced_polar,
    polar_eigh,
    polar_products,
    polar_qr,
    polar_svd,
)
from optax_matrix.linalg._sinkhorn import sinkhorn
from optax_matrix.linalg._subspace import (
    left_vectors,
    overlap,
    randomized_left_vectors,
    range_finder,
    subspace_iteration,
)
from optax_matrix.linalg.coefficients import (
    AOL,
    CUBIC,
    JORDAN,
    POLAR_EXPRESS,
    TAYLOR,
    YOU,
    polar_express,
    started_below,
)
from optax_matrix.linalg.rotations import cross_gram, power_step
from optax_matrix.linalg.skew import from_skew, skew_norm, to_skew

KERNELS.update(
    polar={
        f.__name__: f
        for f in (
            *(newton_schulz, gram_newton_schulz, polar_svd, polar_eigh),
            *(polar_qr, polar_products),
        )
    },
    qr={f.__name__: f for f in (cholesky_qr, qr_householder)},
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
    "cayley",
    "cayley_neumann",
    "cayley_taylor",
    "cholesky_qr",
    "cross_gram",
    "eigenbasis",
    "exponential",
    "from_skew",
    "gram_newton_schulz",
    "inverse_root",
    "left_vectors",
    "newton_schulz",
    "overlap",
    "polar_eigh",
    "polar_express",
    "polar_products",
    "polar_qr",
    "polar_svd",
    "power_step",
    "qr_householder",
    "randomized_left_vectors",
    "range_finder",
    "rank_one_scales",
    "scale_columns",
    "scale_rows",
    "scale_rows_and_columns",
    "sinkhorn",
    "skew_norm",
    "standardize_rows",
    "started_below",
    "subspace_iteration",
    "to_skew",
]
