"""Wrappers: they take a transformation and do not change its algorithm.

They change the precision of computation (`in_float32`, `keep_dtype`) or of storage
(`quantize_state`), turn hyperparameters into state (`inject_hyperparams`), pass the
gradient along a chain (`with_gradient`), or present the blocks of matrices as matrices
of their own (`in_blocks`).
"""

from optax_matrix.transforms.wrappers._in_blocks import in_blocks as in_blocks
from optax_matrix.transforms.wrappers._inject_hyperparams import (
    inject_hyperparams as inject_hyperparams,
)
from optax_matrix.transforms.wrappers._precision import (
    in_float32 as in_float32,
    keep_dtype as keep_dtype,
)
from optax_matrix.transforms.wrappers._quantize_state import (
    quantize_state as quantize_state,
)
from optax_matrix.transforms.wrappers._with_gradient import (
    with_gradient as with_gradient,
)
from optax_matrix.transforms.wrappers.packing import QuantizedState as QuantizedState
