"""Matrix optimizers for JAX as chains of composable optax blocks.

Kernels (`linalg`) know arrays, blocks (`transforms`) know optimizer state, recipes know
papers; `layout` brings any parameter tree into the form that blocks work on, `sharding`
places whole matrices on a mesh.
"""

from optax_matrix import layout, linalg, recipes, sharding, transforms
from optax_matrix.layout import (
    MatrixDimensionNumbers,
    check_restored,
    describe,
    from_portable,
    on_matrices,
    per_matrix,
    to_portable,
)
from optax_matrix.recipes import (
    adamuon,
    mars_adamw,
    muon,
    muon_plus,
    muon_state_from_optax,
    muoneq,
    normuon,
    racs,
    scale_by_adamuon,
    scale_by_mars_adamw,
    scale_by_muon,
    scale_by_muon_plus,
    scale_by_muoneq,
    scale_by_normuon,
    scale_by_racs,
    scale_by_sinkgd,
    scale_by_swan,
    sinkgd,
    swan,
)
from optax_matrix.sharding import owners, state_specs
from optax_matrix.transforms import (
    correct_variance,
    equilibrate,
    equilibrate_with_ema,
    in_float32,
    inject_hyperparams,
    limit_norm_growth,
    match_rms,
    orthogonalize,
    preserve_norm,
    row_rms,
    scale_by_shape,
)

__version__ = "0.1.0"

__all__ = [
    "MatrixDimensionNumbers",
    "adamuon",
    "check_restored",
    "correct_variance",
    "describe",
    "equilibrate",
    "equilibrate_with_ema",
    "from_portable",
    "in_float32",
    "inject_hyperparams",
    "layout",
    "limit_norm_growth",
    "linalg",
    "mars_adamw",
    "match_rms",
    "muon",
    "muon_plus",
    "muon_state_from_optax",
    "muoneq",
    "normuon",
    "on_matrices",
    "orthogonalize",
    "owners",
    "per_matrix",
    "preserve_norm",
    "racs",
    "recipes",
    "row_rms",
    "scale_by_adamuon",
    "scale_by_mars_adamw",
    "scale_by_muon",
    "scale_by_muon_plus",
    "scale_by_muoneq",
    "scale_by_normuon",
    "scale_by_racs",
    "scale_by_shape",
    "scale_by_sinkgd",
    "scale_by_swan",
    "sharding",
    "sinkgd",
    "state_specs",
    "swan",
    "to_portable",
    "transforms",
]
