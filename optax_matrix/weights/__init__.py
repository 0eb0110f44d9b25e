"""What is done with weights themselves and not with gradients.

Initialisations of the matrices of any parameter tree.
"""

from optax_matrix.weights._clip_schedule import clip_after_merge
from optax_matrix.weights._initialize import INITIALIZERS, initialize_matrices
from optax_matrix.weights._initializers import (
    Initializer,
    normalized_gaussian,
    standard_gaussian,
    uniform_spectrum,
    xavier_gaussian,
)

__all__ = [
    "INITIALIZERS",
    "Initializer",
    "clip_after_merge",
    "initialize_matrices",
    "normalized_gaussian",
    "standard_gaussian",
    "uniform_spectrum",
    "xavier_gaussian",
]
