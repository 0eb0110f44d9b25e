"""Equilibration: dividing the rows and columns of a matrix by their own size.

`equilibrate` computes the scales from the current matrix with a kernel of `linalg`,
such as `linalg.scale_rows` or `linalg.sinkhorn`. `equilibrate_with_ema` averages them
over time: all entries of a row or column share one second moment (RACS, NorMuon).
``equilibrate_rank_one`` is RACS's step as a whole, which reads the matrix less often.
`compress_entries` makes the sizes of all entries more alike (SOAP-Muon), and
`smooth_sign` makes them equal but for the smallest (SPlus).
"""

from optax_matrix.transforms.equilibration._compress_entries import (
    compress_entries as compress_entries,
)
from optax_matrix.transforms.equilibration._equilibrate import (
    equilibrate as equilibrate,
)
from optax_matrix.transforms.equilibration._equilibrate_rank_one import (
    equilibrate_rank_one as equilibrate_rank_one,
)
from optax_matrix.transforms.equilibration._equilibrate_with_ema import (
    equilibrate_with_ema as equilibrate_with_ema,
    row_rms as row_rms,
)
from optax_matrix.transforms.equilibration._smooth_sign import (
    smooth_sign as smooth_sign,
)
