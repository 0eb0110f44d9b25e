"""Equilibration: rows and columns of a matrix divided by their own size.

`equilibrate` takes the scales from the present matrix, by a kernel of `linalg` such as
`linalg.scale_rows` or `linalg.sinkhorn`. `equilibrate_with_ema` averages them over
time, so that each row or column has a second moment in common (RACS, NorMuon).
"""

from optax_matrix.transforms.equilibration._equilibrate import equilibrate
from optax_matrix.transforms.equilibration._equilibrate_with_ema import (
    EquilibrateWithEmaState,
    equilibrate_with_ema,
    row_rms,
)

__all__ = [
    "EquilibrateWithEmaState",
    "equilibrate",
    "equilibrate_with_ema",
    "row_rms",
]
