"""Blocks: optax transformations of trees whose leaves are stacks of matrices.

Every leaf is ``(..., m, n)``: the last two axes are the matrix, rows are output
neurons, and every block treats each matrix by itself. `layout.on_matrices` brings the
parameters of a model into that form; without it the blocks work on plain matrices.
"""

from optax_matrix.transforms._bases import (
    gaussian_basis,
    orthonormal_basis,
    subspace_basis,
    svd_basis,
)
from optax_matrix.transforms._basis import Basis, Subspace
from optax_matrix.transforms._combining import back_project
from optax_matrix.transforms._compensate import CompensateState, compensate
from optax_matrix.transforms._equilibrate import (
    EquilibrateWithEmaState,
    equilibrate_with_ema,
)
from optax_matrix.transforms._inject import inject_hyperparams
from optax_matrix.transforms._joint import equilibrate_rows_jointly, sinkhorn_jointly
from optax_matrix.transforms._limit_skew import limit_skew_norm
from optax_matrix.transforms._limiting import LimitNormGrowthState, limit_norm_growth
from optax_matrix.transforms._low_rank import (
    OrthogonalizeLowRankState,
    orthogonalize_low_rank,
)
from optax_matrix.transforms._numerics import row_rms
from optax_matrix.transforms._policies import Side
from optax_matrix.transforms._precondition import PreconditionState, precondition
from optax_matrix.transforms._project_low_rank import (
    ProjectLowRankState,
    project_low_rank,
)
from optax_matrix.transforms._quantize_state import quantize_state
from optax_matrix.transforms._quantizer import QuantizedState
from optax_matrix.transforms._renewal import BasisState
from optax_matrix.transforms._rotate import RotateState, rotate
from optax_matrix.transforms._rotate_shared import (
    RotateSharedState,
    Sets,
    rotate_shared,
)
from optax_matrix.transforms._scale_gradient import scale_gradient
from optax_matrix.transforms._scaling import match_rms, preserve_norm, scale_by_shape
from optax_matrix.transforms._second_moment import (
    ScaleBySecondMomentState,
    scale_by_second_moment,
)
from optax_matrix.transforms._spo import SpoState, spo
from optax_matrix.transforms._stateless import (
    equilibrate,
    in_float32,
    keep_dtype,
    orthogonalize,
)
from optax_matrix.transforms._tracked_adam import (
    ScaleByTrackedAdamState,
    scale_by_tracked_adam,
)
from optax_matrix.transforms._variance import CorrectVarianceState, correct_variance

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
