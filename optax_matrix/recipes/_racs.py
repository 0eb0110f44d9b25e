"""RACS: rows and columns scaled by the best rank-one fit of the squared gradient."""

from functools import partial
from typing import Any

import optax
from jax.typing import ArrayLike, DTypeLike

from optax_matrix.arguments import (
    check_at_least_one,
    check_decay,
    check_flag,
    check_positive,
    check_positive_int,
)
from optax_matrix.layout import on_matrices
from optax_matrix.linalg import rank_one_scales
from optax_matrix.recipes._optimizer import matrix_optimizer, scaled_learning_rate
from optax_matrix.transforms import equilibrate_with_ema, limit_norm_growth


def scale_by_racs(
    beta: ArrayLike = 0.9,
    *,
    scale: ArrayLike = 0.05,
    limiter: ArrayLike = 1.01,
    max_shrink: ArrayLike | None = 2.0,
    rounds: int = 5,
    bias_correction: bool = False,
    dimension_numbers: Any = None,
    placement: Any = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Scales the gradients of matrices as RACS does; leaves the others alone.

    .. math::
        s = (G^2)^\top q / \|q\|^2, \quad q = G^2 s / \|s\|^2, \quad
        \tilde{G} = \mathrm{diag}(q_t)^{-1/2} \, G \, \mathrm{diag}(s_t)^{-1/2}, \quad
        \Delta = \alpha \eta \tilde{G}

    with ``rounds`` rounds from :math:`q = 1`, averages :math:`q_t, s_t` of decay
    ``beta``, the growth limiter :math:`\eta` of `limit_norm_growth`, and
    :math:`\alpha` the ``scale``.

    Args:
        beta: Decay rate of the averages of :math:`q` and :math:`s`.
        scale: Factor :math:`\alpha` of the update; the paper has 0.02 for 1.3B.
        limiter: Largest growth of the update's norm per step.
        max_shrink: Largest fall per step of the norm that the limiter remembers, as
            in `limit_norm_growth`; None is the paper.
        rounds: Rounds of the fixed-point iteration.
        bias_correction: Divide the averages by :math:`1 - \beta^t`. The paper does not:
            its first updates are 10, 5.3, 3.7, ... times larger than the later ones,
            which its warm-up hides.
        dimension_numbers: Which leaves are matrices, as in `on_matrices`.
        placement: Where whole matrices live on a mesh, as in `on_matrices`.

    Returns:
        A transformation for any tree; its state is ``m + n + 1`` numbers per matrix,
        one more with bias correction.

    Raises:
        ValueError: If an argument is out of range.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx = om.scale_by_racs(scale=1.0, bias_correction=True)
        >>> params = {"kernel": jnp.array([[1.0, 2.0], [3.0, 6.0]])}
        >>> updates, _ = tx.update(params, tx.init(params))
        >>> updates["kernel"].round(3).tolist()
        [[1.0, 1.0], [1.0, 1.0]]

    References:
        RACS, Algorithm 1. Deviations: the state holds the roots of :math:`q` and
        :math:`s`, so that large and small gradients neither overflow nor vanish;
        matrices are not transposed to ``m <= n``, which the fixed point does not see;
        an all-zero gradient leaves the state alone; ``max_shrink`` keeps one tiny
        gradient from holding the run down for thousands of steps. An unclipped
        gradient of 1e20 keeps everything finite, but the averages remember it for
        about :math:`\ln(10^{40}) / (-\ln\beta)` steps, 900 at 0.9, in which the
        updates nearly vanish, and the limiter lets them come back by 1.01 per step
        only: chain `optax.clip_by_global_norm` in front.
    """
    check_decay("beta", beta)
    check_positive("scale", scale)
    check_at_least_one("limiter", limiter)
    check_flag("bias_correction", bias_correction)
    if max_shrink is not None:
        check_at_least_one("max_shrink", max_shrink)
    check_positive_int("rounds", rounds)

    def build(layout, beta, scale, limiter, max_shrink):
        del layout
        statistics = partial(rank_one_scales, rounds=rounds)
        return optax.chain(
            equilibrate_with_ema(statistics, beta, bias_correction=bias_correction),
            limit_norm_growth(limiter, max_shrink=max_shrink),
            optax.scale(scale),
        )

    return on_matrices(
        build,
        hyperparams={
            "beta": beta,
            "scale": scale,
            "limiter": limiter,
            "max_shrink": max_shrink,
        },
        dimension_numbers=dimension_numbers,
        placement=placement,
        probe=False,
    )


def racs(
    learning_rate: optax.ScalarOrSchedule,
    *,
    beta: ArrayLike = 0.9,
    scale: ArrayLike = 0.05,
    limiter: ArrayLike = 1.01,
    max_shrink: ArrayLike | None = 2.0,
    rounds: int = 5,
    bias_correction: bool = False,
    weight_decay: optax.ScalarOrSchedule = 0.0,
    weight_decay_mask: Any = None,
    dimension_numbers: Any = None,
    placement: Any = None,
    other: optax.GradientTransformation | None = None,
    other_learning_rate: optax.ScalarOrSchedule | None = None,
    mu_dtype: DTypeLike | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""RACS for matrices, Adam(0.9, 0.999) for the rest.

    `scale_by_racs`, then weight decay (none in the paper) and the learning rate. Chain
    `optax.clip_by_global_norm` in front: the averages remember an unclipped gradient
    of 1e20 for about :math:`\ln(10^{40}) / (-\ln\beta)` steps.

    Args:
        learning_rate: Learning rate, a number or a schedule; 0.02 in the paper.
        beta: Decay rate of the averages of :math:`q` and :math:`s`.
        scale: Factor :math:`\alpha` of the update; the paper has 0.02 for 1.3B.
        limiter: Largest growth of the update's norm per step.
        max_shrink: Largest fall per step of the norm that the limiter remembers, as
            in `limit_norm_growth`; None is the paper.
        rounds: Rounds of the fixed-point iteration.
        bias_correction: Whether to correct the averages, which the paper does not.
        weight_decay: Decoupled weight decay of both sides, a number or a schedule.
        weight_decay_mask: Tree, prefix tree or callable, as in `optax.adamw`.
        dimension_numbers: Which leaves are matrices, as in `on_matrices`; by default
            embeddings and the head are not, as in the paper.
        placement: Where whole matrices live on a mesh, as in `on_matrices`.
        other: Optimizer of all other leaves; None for Adam(0.9, 0.999).
        other_learning_rate: Learning rate of that Adam. The paper does not state it;
            None for ``scale * learning_rate``, which at the defaults is the 1e-3 of
            the paper's Adam.
        mu_dtype: Dtype of that Adam's first moment; None for the parameter's.

    Returns:
        An optimizer of the whole tree.

    Raises:
        ValueError: If an argument is out of range.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx = om.racs(0.02)
        >>> params = {"kernel": jnp.ones((4, 8)), "bias": jnp.zeros(8)}
        >>> updates, state = tx.update(params, tx.init(params), params)
        >>> updates["kernel"].shape
        (4, 8)
    """
    matrix = scale_by_racs(
        beta,
        scale=scale,
        limiter=limiter,
        max_shrink=max_shrink,
        rounds=rounds,
        bias_correction=bias_correction,
        dimension_numbers=dimension_numbers,
        placement=placement,
    )
    if other_learning_rate is None:
        other_learning_rate = scaled_learning_rate(learning_rate, scale)
    return matrix_optimizer(
        matrix,
        learning_rate,
        weight_decay=weight_decay,
        weight_decay_mask=weight_decay_mask,
        dimension_numbers=dimension_numbers,
        other=other,
        other_learning_rate=other_learning_rate,
        other_b2=0.999,
        mu_dtype=mu_dtype,
    )
