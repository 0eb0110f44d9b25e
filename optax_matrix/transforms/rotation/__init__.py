r"""Rotation: an inner optimizer run in a rotated frame, and its update rotated back.

The inner optimizer is called the base. `rotate` finds the frame from the momentum and,
for ARO, from what the base makes of it. `in_eigenbasis` finds it from averaged Gram
matrices (SOAP, Eigen-Adam, SPlus, KL-Shampoo). ``rotate_shared`` gives one rotation to
all matrices at the same point of the residual stream. A policy takes a frame one step
further; ``_frames`` runs the base in it.

Where a momentum has no range, the rows of the rotated one hold rounding noise, which
sign, row norm and similar bases would amplify to full size. Noise means that every
entry of a row is below :math:`4 \epsilon \sqrt{\max(p, q)}` times the norm of its
column (if both sides rotate: of a row or column, times the largest norm of a row or
column). With at most 16 rows and columns, single entries below that are zeros as well.

If more rows rotate than there are columns, q, the first q columns of an R that `rotate`
makes by ``aro``, ``eigen`` or ``eigen_exact`` span the range of the momentum. The base
then gets zeros in all further rows, and the update stays in that range: the part
outside is at most 2e-8 of it times the condition number (measured in float32). If such
a momentum is also singular, most of the update may lie outside its range: in the first
step or two (with signs and ``aro``, wherever leading rows of signs are dependent), and
with ``eigen_exact`` at every step if the other singular values differ by a factor of
100. With averaged Gram matrices nothing is cut off; at the first update, whose Gram
matrix has the range of one gradient, noise grows with the condition number of leading
rows of the gradient and may reach full size.
"""

from optax_matrix.transforms.rotation._in_eigenbasis import (
    InEigenbasisState as InEigenbasisState,
    in_eigenbasis as in_eigenbasis,
)
from optax_matrix.transforms.rotation._joint_equilibration import (
    equilibrate_rows_jointly as equilibrate_rows_jointly,
    sinkhorn_jointly as sinkhorn_jointly,
)
from optax_matrix.transforms.rotation._policies import (
    Policy as Policy,
    PolicyInput as PolicyInput,
    PolicyLike as PolicyLike,
    PolicyName as PolicyName,
    rgd as rgd,
)
from optax_matrix.transforms.rotation._rotate import (
    RotateState as RotateState,
    rotate as rotate,
)
from optax_matrix.transforms.rotation._rotate_shared import (
    RotateSharedState as RotateSharedState,
    Sets as Sets,
    rotate_shared as rotate_shared,
)
from optax_matrix.transforms.rotation._spectrum import (
    scale_by_spectrum as scale_by_spectrum,
)
