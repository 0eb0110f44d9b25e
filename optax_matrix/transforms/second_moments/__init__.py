"""Second moments: dividing updates by the root of the gradient's averaged square.

`scale_by_second_moment` averages the square of each entry, as Adam's denominator does.
`precondition` averages the Gram matrices of rows and columns and multiplies by their
inverse roots (Shampoo, Mousse). `whiten` finds such roots by products alone, from one
gradient after the other (PSGD Kron). `scale_by_amsgrad` divides by the largest second
moment so far.
"""

from optax_matrix.transforms.second_moments._precondition import (
    PreconditionState as PreconditionState,
    precondition as precondition,
)
from optax_matrix.transforms.second_moments._scale_by_amsgrad import (
    ScaleByAmsgradState as ScaleByAmsgradState,
    scale_by_amsgrad as scale_by_amsgrad,
)
from optax_matrix.transforms.second_moments._scale_by_second_moment import (
    scale_by_second_moment as scale_by_second_moment,
)
from optax_matrix.transforms.second_moments._whiten import (
    whiten as whiten,
)
from optax_matrix.transforms.second_moments.gram import Gram as Gram
