"""Blocks: optax transformations of trees whose leaves are stacks of matrices.

Every leaf is ``(..., m, n)``: the last two axes are the matrix, rows are output
neurons, and a block processes each matrix independently of the others.
`tree.on_matrices` brings the parameters of a model into that form; without it the
blocks work on plain matrices.

A method is a chain of blocks. Some blocks run an inner transformation f:

=========================  =========================================================
``first_moments``          the average of the gradients
``equilibration``          ``D_r^(-1/2) M D_c^(-1/2)``, D from row and column sizes
``orthogonalization``      ``U V'`` of the SVD ``M = U S V'``
``norm_balls``             ``argmax <M, D>`` over ``|D| <= 1``
``second_moments``         ``M / sqrt(V)`` entry by entry; ``L^(-p) M R^(-p)``;
                           ``P M Q``, with P and Q that whiten gradients
``rotation``               ``R f(R' M)``, R orthogonal
``low_rank``               ``U f(U' G)``, U with few orthonormal columns
``stochastic_primitives``  ``W = R W_0 P``, where f moves orthogonal R and P
``variance_reduction``     ``G_t + c (G_t - G_(t-1))``
``update_size``            ``c M``, c from the shape or a norm
``weight_size``            steps such that ``|W| = |W_0|``; directions; decay
``connectives``            ``w_1 f_1(G) + w_2 f_2(G)``; a function with a state
``wrappers``               f in another precision, or with injected hyperparameters;
                           ``f(A, B)`` of two matrices
=========================  =========================================================

For example:

>>> import jax.numpy as jnp, optax
>>> import optax_matrix as om
>>> block = optax.chain(
...     om.momentum(0.95),
...     om.equilibrate(om.linalg.sinkhorn),
...     om.orthogonalize(om.linalg.polar_svd),
...     om.match_rms(0.2),
... )
>>> tx = optax.chain(om.on_matrices(block), optax.scale_by_learning_rate(3e-3))
>>> params = {"kernel": jnp.ones((3, 5)), "bias": jnp.ones(5)}
>>> state = tx.init(params)

``.docs/guides/transforms.rst`` lists them by what they are for, with the choices of
each. Families may use one another, but never in circles. What they share: ``sides``
(rows, columns or both), ``blocks`` (matrices cut into blocks), ``arguments`` (checks).
"""

from optax_matrix._surroundings.layouts import partners_of
from optax_matrix.transforms.connectives import add, with_state
from optax_matrix.transforms.equilibration import (
    compress_entries,
    equilibrate,
    equilibrate_with_ema,
    row_rms,
    smooth_sign,
)
from optax_matrix.transforms.first_moments import momentum
from optax_matrix.transforms.low_rank import (
    Basis,
    Subspace,
    back_project,
    compensate,
    given_basis,
    orthogonalize_low_rank,
    orthogonalize_selected,
    project_low_rank,
    scale_by_tracked_adam,
    scale_gradient,
    subspace_basis,
)
from optax_matrix.transforms.norm_balls import lmo
from optax_matrix.transforms.orthogonalization import (
    orthogonalize,
    orthogonalize_balanced,
)
from optax_matrix.transforms.rotation import (
    Policy,
    PolicyInput,
    in_eigenbasis,
    rgd,
    rotate,
    scale_by_spectrum,
)
from optax_matrix.transforms.second_moments import (
    precondition,
    scale_by_amsgrad,
    scale_by_second_moment,
    whiten,
)
from optax_matrix.transforms.stochastic_primitives import (
    limit_skew_norm,
    scale_by_adam_per_matrix,
    spo,
)
from optax_matrix.transforms.update_size import (
    limit_norm_growth,
    match_rms,
    preserve_norm,
    scale_by_shape,
    target_rms,
)
from optax_matrix.transforms.variance_reduction import correct_variance
from optax_matrix.transforms.weight_size import (
    add_cautious_decay,
    finish_step,
    on_directions,
)
from optax_matrix.transforms.wrappers import (
    Factor,
    in_blocks,
    in_float32,
    inject_hyperparams,
    on_pairs,
    with_gradient,
)

__all__ = [
    "Basis",
    "Factor",
    "Policy",
    "PolicyInput",
    "Subspace",
    "add",
    "add_cautious_decay",
    "back_project",
    "compensate",
    "compress_entries",
    "correct_variance",
    "equilibrate",
    "equilibrate_with_ema",
    "finish_step",
    "given_basis",
    "in_blocks",
    "in_eigenbasis",
    "in_float32",
    "inject_hyperparams",
    "limit_norm_growth",
    "limit_skew_norm",
    "lmo",
    "match_rms",
    "momentum",
    "on_directions",
    "on_pairs",
    "orthogonalize",
    "orthogonalize_balanced",
    "orthogonalize_low_rank",
    "orthogonalize_selected",
    "partners_of",
    "precondition",
    "preserve_norm",
    "project_low_rank",
    "rgd",
    "rotate",
    "row_rms",
    "scale_by_adam_per_matrix",
    "scale_by_amsgrad",
    "scale_by_second_moment",
    "scale_by_shape",
    "scale_by_spectrum",
    "scale_by_tracked_adam",
    "scale_gradient",
    "smooth_sign",
    "spo",
    "subspace_basis",
    "target_rms",
    "whiten",
    "with_gradient",
    "with_state",
]
