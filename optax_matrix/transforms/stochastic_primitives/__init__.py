"""Stochastic primitives: weights trained through orthogonal factors only (POET, OFT).

`spo` trains skew-symmetric blocks Q. A map turns them into orthogonal blocks, which
rotate randomly drawn rows and columns of a weight and so preserve its singular values
(``primitives``). At regular intervals the rotations are merged into the weights and new
ones are drawn (``merges``). A change of the weights from outside is noticed by their
bits (``_fingerprint``). `limit_skew_norm` keeps Q small enough for the map to be
accurate (``skew_bound``); `scale_by_adam_per_matrix` is Adam for matrices that merge
alone.
"""

from optax_matrix.transforms.stochastic_primitives._adam_per_matrix import (
    scale_by_adam_per_matrix as scale_by_adam_per_matrix,
)
from optax_matrix.transforms.stochastic_primitives._spo import spo as spo
from optax_matrix.transforms.stochastic_primitives._spo_step import (
    SpoState as SpoState,
)
from optax_matrix.transforms.stochastic_primitives.skew_bound import (
    limit_skew_norm as limit_skew_norm,
)
