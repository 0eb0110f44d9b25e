"""Blocks: optax transformations of trees whose leaves are stacks of matrices.

Every leaf is ``(..., m, n)``: the last two axes are the matrix, rows are output
neurons, and every block treats each matrix by itself. A method is a chain of blocks,
one inside another where a block runs an inner transformation f:

=========================  =========================================================
`equilibration`            ``D_r^(-1/2) M D_c^(-1/2)``, D from row and column sizes
`orthogonalization`        ``U V'`` of the SVD ``M = U S V'``
`second_moments`           ``M / sqrt(V)`` entry by entry; ``L^(-1/p) M R^(-1/p)``
`rotation`                 ``R f(R' M)``, R orthogonal
`low_rank`                 ``U f(U' G)``, U of few orthonormal columns
`stochastic_primitives`    ``W = R W_0 P``, where f moves orthogonal R and P
`variance_reduction`       ``G_t + c (G_t - G_(t-1))``
`update_size`              ``c M``, c from the shape or a norm
`wrappers`                 f in another precision, or with injected hyperparameters
=========================  =========================================================

`layout.on_matrices` brings the parameters of a model into that form; without it the
blocks work on plain matrices.
"""

from optax_matrix.transforms.equilibration import (
    EquilibrateWithEmaState,
    equilibrate,
    equilibrate_with_ema,
    row_rms,
)
from optax_matrix.transforms.low_rank import (
    Basis,
    BasisState,
    CompensateState,
    OrthogonalizeLowRankState,
    ProjectLowRankState,
    ScaleByTrackedAdamState,
    Subspace,
    back_project,
    compensate,
    gaussian_basis,
    orthogonalize_low_rank,
    orthonormal_basis,
    project_low_rank,
    scale_by_tracked_adam,
    scale_gradient,
    subspace_basis,
    svd_basis,
)
from optax_matrix.transforms.orthogonalization import (
    orthogonalize,
)
from optax_matrix.transforms.rotation import (
    RotateSharedState,
    RotateState,
    Sets,
    Side,
    equilibrate_rows_jointly,
    rotate,
    rotate_shared,
    sinkhorn_jointly,
)
from optax_matrix.transforms.second_moments import (
    PreconditionState,
    ScaleBySecondMomentState,
    precondition,
    scale_by_second_moment,
)
from optax_matrix.transforms.stochastic_primitives import (
    SpoState,
    limit_skew_norm,
    spo,
)
from optax_matrix.transforms.update_size import (
    LimitNormGrowthState,
    limit_norm_growth,
    match_rms,
    preserve_norm,
    scale_by_shape,
)
from optax_matrix.transforms.variance_reduction import (
    CorrectVarianceState,
    correct_variance,
)
from optax_matrix.transforms.wrappers import (
    QuantizedState,
    in_float32,
    inject_hyperparams,
    keep_dtype,
    quantize_state,
)

__all__ = [
    "Basis",
    "BasisState",
    "CompensateState",
    "CorrectVarianceState",
    "EquilibrateWithEmaState",
    "LimitNormGrowthState",
    "OrthogonalizeLowRankState",
    "PreconditionState",
    "ProjectLowRankState",
    "QuantizedState",
    "RotateSharedState",
    "RotateState",
    "ScaleBySecondMomentState",
    "ScaleByTrackedAdamState",
    "Sets",
    "Side",
    "SpoState",
    "Subspace",
    "back_project",
    "compensate",
    "correct_variance",
    "equilibrate",
    "equilibrate_rows_jointly",
    "equilibrate_with_ema",
    "gaussian_basis",
    "in_float32",
    "inject_hyperparams",
    "keep_dtype",
    "limit_norm_growth",
    "limit_skew_norm",
    "match_rms",
    "orthogonalize",
    "orthogonalize_low_rank",
    "orthonormal_basis",
    "precondition",
    "preserve_norm",
    "project_low_rank",
    "quantize_state",
    "rotate",
    "rotate_shared",
    "row_rms",
    "scale_by_second_moment",
    "scale_by_shape",
    "scale_by_tracked_adam",
    "scale_gradient",
    "sinkhorn_jointly",
    "spo",
    "subspace_basis",
    "svd_basis",
]
