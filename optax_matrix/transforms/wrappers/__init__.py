"""Wrappers: they take a transformation and do not change its algorithm.

They change the precision of computation (`in_float32`, ``keep_dtype``), turn
hyperparameters into state (`inject_hyperparams`), pass the gradient along a chain
(`with_gradient`), or present the blocks of matrices as matrices of their own
(`in_blocks`). `on_pairs` makes a transformation of a function of two matrices.
"""

from optax_matrix.transforms.wrappers._in_blocks import in_blocks as in_blocks
from optax_matrix.transforms.wrappers._inject_hyperparams import (
    inject_hyperparams as inject_hyperparams,
)
from optax_matrix.transforms.wrappers._on_pairs import (
    Factor as Factor,
    on_pairs as on_pairs,
)
from optax_matrix.transforms.wrappers._precision import (
    in_float32 as in_float32,
    keep_dtype as keep_dtype,
    with_dtypes_of as with_dtypes_of,
)
from optax_matrix.transforms.wrappers._with_gradient import (
    with_gradient as with_gradient,
)
