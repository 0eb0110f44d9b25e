"""Kernels of our own for accelerators, in Pallas: products that are symmetric.

A product whose result is symmetric needs its lower tiles only; each of them is written
twice, once as it is and once transposed. Compilers do not see this.
"""

from optax_matrix.linalg.pallas._hopper import (
    gram as gram,
    newton_schulz as newton_schulz,
    quadratic as quadratic,
)
from optax_matrix.linalg.pallas._refusal import refuse as refuse
