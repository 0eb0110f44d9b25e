"""Matrix optimizers for JAX as chains of composable optax blocks.

Kernels (`linalg`) know arrays, blocks (`transforms`) know optimizer state, recipes know
papers; `layout` brings any parameter tree into the form that blocks work on, `sharding`
places whole matrices on a mesh.
"""

from optax_matrix import (
    diagnostics,
    layout,
    linalg,
    recipes,
    sharding,
    transforms,
    weights,
)
from optax_matrix.interop import muon_state_from_optax
from optax_matrix.layout import (
    MatrixDimensionNumbers,
    check_restored,
    describe,
    from_portable,
    on_matrices,
    per_matrix,
    to_portable,
)
from optax_matrix.quantization import adamw_8bit, quantized
from optax_matrix.recipes import *  # noqa: F403
from optax_matrix.sharding import owners, state_specs
from optax_matrix.transforms import (
    compensate,
    correct_variance,
    equilibrate,
    equilibrate_with_ema,
    in_float32,
    inject_hyperparams,
    limit_norm_growth,
    match_rms,
    orthogonalize,
    orthogonalize_low_rank,
    precondition,
    preserve_norm,
    project_low_rank,
    quantize_state,
    rotate,
    row_rms,
    scale_by_second_moment,
    scale_by_shape,
    spo,
)
from optax_matrix.weights import (
    apply_adapter,
    extract_adapter,
    initialize_matrices,
    reparameterize,
)

__version__ = "0.1.0"

__all__ = [  # pyright: ignore[reportUnsupportedDunderAll]
    *recipes.names(),
    "MatrixDimensionNumbers",
    "adamw_8bit",
    "apply_adapter",
    "check_restored",
    "compensate",
    "correct_variance",
    "describe",
    "diagnostics",
    "equilibrate",
    "equilibrate_with_ema",
    "extract_adapter",
    "from_portable",
    "in_float32",
    "initialize_matrices",
    "inject_hyperparams",
    "layout",
    "limit_norm_growth",
    "linalg",
    "match_rms",
    "muon_state_from_optax",
    "on_matrices",
    "orthogonalize",
    "orthogonalize_low_rank",
    "owners",
    "per_matrix",
    "precondition",
    "preserve_norm",
    "project_low_rank",
    "quantize_state",
    "quantized",
    "recipes",
    "reparameterize",
    "rotate",
    "row_rms",
    "scale_by_second_moment",
    "scale_by_shape",
    "sharding",
    "spo",
    "state_specs",
    "to_portable",
    "transforms",
    "weights",
]
