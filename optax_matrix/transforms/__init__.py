"""Blocks: optax transformations of trees whose leaves are stacks of matrices.

Every leaf is ``(..., m, n)``: the last two axes are the matrix, rows are output
neurons, and a block processes each matrix independently of the others.
`tree.on_matrices` brings the parameters of a model into that form; without it the
blocks work on plain matrices.

A method is a chain of blocks. Some blocks run an inner transformation f:

=========================  =========================================================
`first_moments`            the average of the gradients
`equilibration`            ``D_r^(-1/2) M D_c^(-1/2)``, D from row and column sizes
`orthogonalization`        ``U V'`` of the SVD ``M = U S V'``
`second_moments`           ``M / sqrt(V)`` entry by entry; ``L^(-1/p) M R^(-1/p)``
`rotation`                 ``R f(R' M)``, R orthogonal
`low_rank`                 ``U f(U' G)``, U with few orthonormal columns
`stochastic_primitives`    ``W = R W_0 P``, where f moves orthogonal R and P
`variance_reduction`       ``G_t + c (G_t - G_(t-1))``
`update_size`              ``c M``, c from the shape or a norm
`weight_size`              ``|W| = |W_0|``; decay
`wrappers`                 f in another precision, or with injected hyperparameters
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

Average gradients:

* `momentum` is the exponential average that most chains start with.

Scale rows, columns and entries:

* `equilibrate` rescales rows, columns or both with a kernel: `linalg.scale_rows`,
  `linalg.scale_columns`, `linalg.scale_rows_and_columns`, `linalg.sinkhorn`,
  `linalg.standardize_rows`.
* `equilibrate_with_ema` rescales them with averaged second moments:
  `linalg.rank_one_scales` (RACS), `row_rms` (NorMuon).
* `scale_by_second_moment` divides every entry by the root of its averaged square:
  twofold Adam, or SOAP's denominator inside `in_eigenbasis`.
* `scale_by_amsgrad` divides by the largest second moment so far.
* `compress_entries` takes a power of every entry (SOAP-Muon).
* `correct_variance` computes the variance-reduced gradient of MARS.

Orthogonalize:

* `orthogonalize` replaces a matrix by its polar factor, computed by a kernel:
  `linalg.newton_schulz`, `linalg.gram_newton_schulz`, `linalg.polar_svd`,
  `linalg.polar_eigh`, `linalg.polar_qr`, `linalg.polar_qdwh`.
* `orthogonalize_balanced` also brings the rows of the factor to like norms (Aurora).
* `orthogonalize_low_rank` keeps a momentum and returns its leading part as orthonormal
  factors of rank r (Dion).
* `orthogonalize_selected` replaces the largest rows of a momentum by their polar factor
  (Dion2).

Set the size of an update:

* `scale_by_shape` multiplies by a factor that depends on the shape: ``"out/in"``,
  ``"unclipped"``, ``"max"``, ``"sqrt_max"``, ``"sum"``, ``"none"``, or your function.
* `match_rms` sets the root mean square.
* `preserve_norm` runs a transformation and restores the norm.
* `limit_norm_growth` lets the norm grow by at most a factor per step.

Change the frame:

* `rotate` runs any transformation in a frame that follows the momentum (``policy``
  ``aro``, ``polar``, ``rgd``, ``eigen``, ``eigen_exact``, ``identity``, or your
  `Policy`), on one side or both.
* `in_eigenbasis` runs one in the eigenbasis of averaged Gram matrices of the gradient
  (SOAP, SPlus). With ``statistics="kl"`` each side is whitened by the other first
  (KL-SOAP); `scale_by_spectrum` divides by the eigenvalues that this yields
  (KL-Shampoo).
* `precondition` multiplies by inverse roots of averaged Gram matrices, with a
  transformation in between if you like (Shampoo, Mousse).

Work in a subspace:

* `project_low_rank` runs any transformation on coordinates in a subspace and combines
  its output with the gradient. ``basis`` is ``randomized_svd``, ``svd``, ``subspace``
  (Alice), ``gaussian``, ``orthonormal``, or your functions. When the basis changes,
  moments are transported to the new one, kept as they are, or reset.
* `project_both_sides` does the same with the rows and the columns (low-rank SOAP).
* `compensate` adds an update from the residual of the projection (``optimal``,
  ``fira``, ``fira_plus``).
* `scale_gradient` scales the whole gradient by the factor by which an inner optimizer
  changed the norms of its projection (APOLLO).
* `scale_by_tracked_adam` runs Adam in a subspace that takes a power step at every
  update, with error feedback (LDAdam).

Train orthogonal factors of the weights:

* `spo` trains Q with any transformation; the update is R W₀ P - W, learning rate
  included (POET, OFT). `limit_skew_norm` bounds the norm of Q.
  `scale_by_adam_per_matrix` is Adam for a Q that is merged by itself.

Control the size of the weights:

* `fix_norm` takes steps of a given relative length on the sphere of the initial norm
  (Hyperball). `weights.hyperball` puts it around any optimizer.
* `add_cautious_decay` adds weight decay where it does not work against the update; in a
  recipe ``cautious_decay=True`` does.

Wrap other transformations:

* `in_float32` runs a transformation in float32 where updates are bfloat16.
* `quantize_state` stores the moments of a transformation in eight bits between steps.
* `with_gradient` passes the gradient along a chain, for the second moment (Muon²).
* `inject_hyperparams` is `optax.inject_hyperparams` with static arguments and float32
  values: numbers are stored in the state, where they can be changed or scheduled.

>>> tx = om.inject_hyperparams(om.muon)(optax.linear_schedule(0.02, 0.0, 100), b1=0.9)
>>> float(tx.init(params).hyperparams["b1"])
0.89999...

**Gradients that are not finite.** Gradients of matrices of up to 1e20, zero included,
give finite updates and state (in float16, `dion` up to about 3,000). If a gradient
holds a NaN or infinity, its matrix gets the update that the keyword ``nonfinite`` of
every recipe chooses, and other matrices go on as ever. By default that update is NaN,
and the state stays as it was. To skip the whole step, also for leaves that are not
matrices, wrap the optimizer:

>>> tx = optax.apply_if_finite(om.muon(0.02), max_consecutive_errors=5)
>>> bad = {"kernel": params["kernel"].at[0, 0].set(jnp.nan), "bias": params["bias"]}
>>> updates, state = tx.update(bad, tx.init(params), params)
>>> float(jnp.abs(updates["kernel"]).max())
0.0
"""

from optax_matrix.transforms.equilibration import (
    EquilibrateWithEmaState,
    compress_entries,
    equilibrate,
    equilibrate_with_ema,
    row_rms,
)
from optax_matrix.transforms.first_moments import MomentumState, momentum
from optax_matrix.transforms.low_rank import (
    Basis,
    BasisState,
    CompensateState,
    OrthogonalizeLowRankState,
    OrthogonalizeSelectedState,
    ProjectLowRankState,
    ScaleByTrackedAdamState,
    Subspace,
    back_project,
    compensate,
    gaussian_basis,
    given_basis,
    orthogonalize_low_rank,
    orthogonalize_selected,
    orthonormal_basis,
    project_both_sides,
    project_low_rank,
    scale_by_tracked_adam,
    scale_gradient,
    subspace_basis,
    svd_basis,
)
from optax_matrix.transforms.orthogonalization import (
    orthogonalize,
    orthogonalize_balanced,
)
from optax_matrix.transforms.rotation import (
    InEigenbasisState,
    Policy,
    PolicyInput,
    RotateSharedState,
    RotateState,
    Sets,
    equilibrate_rows_jointly,
    in_eigenbasis,
    rgd,
    rotate,
    rotate_shared,
    scale_by_spectrum,
    sinkhorn_jointly,
)
from optax_matrix.transforms.second_moments import (
    PreconditionState,
    ScaleByAmsgradState,
    ScaleBySecondMomentState,
    precondition,
    scale_by_amsgrad,
    scale_by_second_moment,
)
from optax_matrix.transforms.stochastic_primitives import (
    ScaleByAdamPerMatrixState,
    SpoState,
    limit_skew_norm,
    scale_by_adam_per_matrix,
    spo,
)
from optax_matrix.transforms.update_size import (
    LimitNormGrowthState,
    limit_norm_growth,
    match_rms,
    preserve_norm,
    scale_by_shape,
)
from optax_matrix.transforms.variance_reduction import (
    CorrectVarianceState,
    correct_variance,
)
from optax_matrix.transforms.weight_size import (
    FixNormState,
    add_cautious_decay,
    fix_norm,
)
from optax_matrix.transforms.wrappers import (
    QuantizedState,
    in_float32,
    inject_hyperparams,
    keep_dtype,
    quantize_state,
    with_gradient,
)

__all__ = [
    "Basis",
    "BasisState",
    "CompensateState",
    "CorrectVarianceState",
    "EquilibrateWithEmaState",
    "FixNormState",
    "InEigenbasisState",
    "LimitNormGrowthState",
    "MomentumState",
    "OrthogonalizeLowRankState",
    "OrthogonalizeSelectedState",
    "Policy",
    "PolicyInput",
    "PreconditionState",
    "ProjectLowRankState",
    "QuantizedState",
    "RotateSharedState",
    "RotateState",
    "ScaleByAdamPerMatrixState",
    "ScaleByAmsgradState",
    "ScaleBySecondMomentState",
    "ScaleByTrackedAdamState",
    "Sets",
    "SpoState",
    "Subspace",
    "add_cautious_decay",
    "back_project",
    "compensate",
    "compress_entries",
    "correct_variance",
    "equilibrate",
    "equilibrate_rows_jointly",
    "equilibrate_with_ema",
    "fix_norm",
    "gaussian_basis",
    "given_basis",
    "in_eigenbasis",
    "in_float32",
    "inject_hyperparams",
    "keep_dtype",
    "limit_norm_growth",
    "limit_skew_norm",
    "match_rms",
    "momentum",
    "orthogonalize",
    "orthogonalize_balanced",
    "orthogonalize_low_rank",
    "orthogonalize_selected",
    "orthonormal_basis",
    "precondition",
    "preserve_norm",
    "project_both_sides",
    "project_low_rank",
    "quantize_state",
    "rgd",
    "rotate",
    "rotate_shared",
    "row_rms",
    "scale_by_adam_per_matrix",
    "scale_by_amsgrad",
    "scale_by_second_moment",
    "scale_by_shape",
    "scale_by_spectrum",
    "scale_by_tracked_adam",
    "scale_gradient",
    "sinkhorn_jointly",
    "spo",
    "subspace_basis",
    "svd_basis",
    "with_gradient",
]
