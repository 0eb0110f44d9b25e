"""Rotation: an inner optimizer run in a rotated frame, and its update rotated back.

The inner optimizer is called the base. A policy finds the rotation: from the momentum
and the update of the base (ARO), or as the eigenvectors of averaged Gram matrices
(SOAP, Eigen-Adam, SPlus). `rotate` gives every matrix its own rotation.
`rotate_shared` gives one rotation to all matrices at the same point of the residual
stream.
"""

from optax_matrix.transforms.rotation._joint_equilibration import (
    equilibrate_rows_jointly,
    sinkhorn_jointly,
)
from optax_matrix.transforms.rotation._policies import (
    Policy,
    PolicyLike,
    PolicyName,
    Side,
    rgd,
)
from optax_matrix.transforms.rotation._rotate import RotateState, rotate
from optax_matrix.transforms.rotation._rotate_shared import (
    RotateSharedState,
    Sets,
    rotate_shared,
)
from optax_matrix.transforms.rotation._spectrum import scale_by_spectrum

__all__ = [
    "Policy",
    "PolicyLike",
    "PolicyName",
    "RotateSharedState",
    "RotateState",
    "Sets",
    "Side",
    "equilibrate_rows_jointly",
    "rgd",
    "rotate",
    "rotate_shared",
    "scale_by_spectrum",
    "sinkhorn_jointly",
]
