"""Kernels of our own for accelerators, in Pallas: products that are symmetric.

A product whose result is symmetric needs its lower tiles only; each of them is written
twice, once as it is and once transposed. Compilers do not see this. On TPUs all steps
of an iteration run in fast memory where a matrix fits there.
"""

from optax_matrix.linalg.pallas._choice import check as check, gains as gains
from optax_matrix.linalg.pallas._forms import forms as forms
from optax_matrix.linalg.pallas._hopper import (
    TILE as TILE,
    gram as gram,
    quadratic as quadratic,
)
from optax_matrix.linalg.pallas._refusal import refuse as refuse
