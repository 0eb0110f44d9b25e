"""Transformations of matrices, run on any parameter tree.

`on_matrices` gathers the matrix leaves into stacks (`stacks`), runs a transformation on
them where they live (`sharding`), and puts the results back into the tree.

At ``init`` it tests whether the transformation treats each matrix by itself, and raises
an error if it does not, as `optax.clip_by_global_norm` or
`optax.scale_by_trust_ratio`. Chain these outside of `on_matrices`. `per_matrix` maps a
transformation that is defined per leaf over the matrices of a stack:

>>> import jax.numpy as jnp, optax
>>> import optax_matrix as om
>>> params = {"up": {"kernel": jnp.ones((4, 8)), "bias": jnp.ones(8)}}
>>> tx = om.on_matrices(om.per_matrix(optax.scale_by_trust_ratio()), needs_params=True)
>>> _ = tx.init(params)

`describe` lists what happens to each leaf; `scale_by_path` and `decay_by_path` give
leaves learning rates and weight decay of their own.
"""

from optax_matrix.tree._decay_by_path import decay_by_path
from optax_matrix.tree._describe import Description, describe
from optax_matrix.tree._on_matrices import on_matrices
from optax_matrix.tree._per_matrix import per_matrix
from optax_matrix.tree._scale_by_path import scale_by_path
from optax_matrix.tree._unusual import NonFinite as NonFinite, OnZero as OnZero
from optax_matrix.tree.state import OnMatricesState

__all__ = [
    "Description",
    "OnMatricesState",
    "decay_by_path",
    "describe",
    "on_matrices",
    "per_matrix",
    "scale_by_path",
]
