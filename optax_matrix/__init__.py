"""Matrix optimizers for JAX as chains of composable optax blocks.

Kernels (`linalg`) know arrays, blocks (`transforms`) know optimizer state, recipes know
papers; `layout` brings any parameter tree into the form that blocks work on.
"""

from optax_matrix import layout, linalg, recipes, transforms
from optax_matrix.layout import (
    MatrixDimensionNumbers,
    check_restored,
    describe,
    from_portable,
    on_matrices,
    per_matrix,
    to_portable,
)

__version__ = "0.1.0"

__all__ = [
    "MatrixDimensionNumbers",
    "check_restored",
    "describe",
    "from_portable",
    "layout",
    "linalg",
    "on_matrices",
    "per_matrix",
    "recipes",
    "to_portable",
    "transforms",
]
