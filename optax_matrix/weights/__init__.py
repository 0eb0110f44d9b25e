"""Functions and optimizers that act on the weights themselves.

========================  ==============================================================
``_initialize``           `initialize_matrices` draws new matrices for any tree
``_adapters``             `extract_adapter` returns the change by fine-tuning as LoRA
                          pairs; `apply_adapter` adds it to weights
``_clip_qk``              `clip_qk` scales down query and key kernels of heads whose
                          logits passed a threshold (the QK-Clip of MuonClip), also in
                          latent attention (``_attentions``)
``_average_weights``      `average_weights` keeps an average of them in the state;
``_evaluation_params``    `evaluation_params` returns it, also for schedule-free
``_outer``                `outer`: a step of Nesterov momentum after every few steps
``_hyperball``            `hyperball` wraps any optimizer so that each matrix keeps its
                          norm, in place of weight decay
``_stochastic_rounding``  `stochastic_rounding` trains bfloat16 weights and rounds them
                          at random, without a float32 copy
``_store_remainders``     `store_remainders` keeps their lower 16 bits in the state, so
                          that nothing is rounded (``_round``: bits of weights)
``_rotate_residual``      `rotate_residual` rotates the coordinates of the residual
                          stream; a transformer with RMSNorm stays the same function
``_reparameterize``,      `reparameterize`: POET with frozen weights between trainable
``_reparameterization``   rotations (``_leaf``, ``_reset``, ``_sharding``)
``_clip_schedule``        `clip_after_merge`, the clip threshold of POET's authors
========================  ==============================================================

>>> import jax, jax.numpy as jnp
>>> import optax_matrix as om
>>> params = {"up": jnp.zeros((8, 16)), "bias": jnp.zeros(16)}
>>> params = om.initialize_matrices(params, jax.random.key(0))
>>> norms = jnp.linalg.norm(params["up"], axis=0)  # Kernels are (in, out).
>>> norms.round(3).tolist()[:2]
[1.0, 1.0]

``.docs/guides/weights.rst`` has both forms of POET, step by step.
"""

from optax_matrix.weights._adapters import Adapter, apply_adapter, extract_adapter
from optax_matrix.weights._average_weights import (
    AverageWeightsState,
    average_weights,
)
from optax_matrix.weights._clip_qk import clip_qk
from optax_matrix.weights._clip_schedule import clip_after_merge
from optax_matrix.weights._evaluation_params import evaluation_params
from optax_matrix.weights._hyperball import hyperball
from optax_matrix.weights._initialize import INITIALIZERS, initialize_matrices
from optax_matrix.weights._outer import OuterState, outer
from optax_matrix.weights._reparameterization import (
    Frozen,
    Reparameterization,
    Trainable,
)
from optax_matrix.weights._reparameterize import reparameterize
from optax_matrix.weights._rotate_residual import rotate_residual
from optax_matrix.weights._stochastic_rounding import (
    StochasticRoundingState,
    stochastic_rounding,
)
from optax_matrix.weights._store_remainders import (
    StoreRemaindersState,
    store_remainders,
)

__all__ = [
    "INITIALIZERS",
    "Adapter",
    "AverageWeightsState",
    "Frozen",
    "OuterState",
    "Reparameterization",
    "StochasticRoundingState",
    "StoreRemaindersState",
    "Trainable",
    "apply_adapter",
    "average_weights",
    "clip_after_merge",
    "clip_qk",
    "evaluation_params",
    "extract_adapter",
    "hyperball",
    "initialize_matrices",
    "outer",
    "reparameterize",
    "rotate_residual",
    "stochastic_rounding",
    "store_remainders",
]
