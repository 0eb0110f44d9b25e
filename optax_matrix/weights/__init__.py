"""Tools for weights, as opposed to gradients.

Initializers for the matrices of any parameter tree, low-rank adapters of the change of
weights, and weights that are parametrized by trainable rotations.
"""

from optax_matrix.weights._adapters import Adapter, apply_adapter, extract_adapter
from optax_matrix.weights._clip_schedule import clip_after_merge
from optax_matrix.weights._initialize import INITIALIZERS, initialize_matrices
from optax_matrix.weights._initializers import (
    Initializer,
    normalized_gaussian,
    standard_gaussian,
    uniform_spectrum,
    xavier_gaussian,
)
from optax_matrix.weights._reparameterization import (
    Frozen,
    Reparameterization,
    Trainable,
)
from optax_matrix.weights._reparameterize import reparameterize

__all__ = [
    "INITIALIZERS",
    "Adapter",
    "Frozen",
    "Initializer",
    "Reparameterization",
    "Trainable",
    "apply_adapter",
    "clip_after_merge",
    "extract_adapter",
    "initialize_matrices",
    "normalized_gaussian",
    "reparameterize",
    "standard_gaussian",
    "uniform_spectrum",
    "xavier_gaussian",
]
