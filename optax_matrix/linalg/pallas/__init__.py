"""Kernels of our own for Hopper GPUs, in Pallas: products that are symmetric.

A product whose result is symmetric needs its lower tiles only; each of them is written
twice, once as it is and once transposed. Compilers do not see this.
"""

from optax_matrix.linalg.pallas._choice import (
    check as check,
    gains as gains,
    refuse as refuse,
)
from optax_matrix.linalg.pallas._hopper import (
    TILE as TILE,
    gram as gram,
    padded as padded,
    quadratic as quadratic,
    stacked as stacked,
    unfolded as unfolded,
)
from optax_matrix.linalg.pallas._iteration import (
    Form as Form,
    Steps as Steps,
    by_products as by_products,
    newton_schulz as newton_schulz,
    on_hopper as on_hopper,
)
