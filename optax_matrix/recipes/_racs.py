"""RACS: row and column scaling by a fixed point, averaged over time."""

from typing import Unpack

from optax_matrix._arguments import (
    AtLeastOne,
    Decay,
    Dtype,
    Positive,
    PositiveInt,
    Rate,
)
from optax_matrix.recipes._method import Method
from optax_matrix.recipes._recipe import Common, direction, recipe
from optax_matrix.transforms.equilibration import equilibrate_rank_one


@recipe
def racs(
    learning_rate: Rate,
    *,
    b1: Decay = 0.9,
    scale: Positive = 0.05,
    limiter: AtLeastOne = 1.01,
    max_shrink: AtLeastOne | None = 2.0,
    max_rms: AtLeastOne | None = 4.0,
    rounds: PositiveInt = 5,
    bias_correction: bool = False,
    weight_decay: Rate = 0.0,
    mu_dtype: Dtype | None = None,
    **common: Unpack[Common],
) -> Method:
    r"""RACS for matrices, Adam(0.9, 0.999) for the rest.

    .. math::
        s = (G^2)^\top q / \|q\|^2, \quad q = G^2 s / \|s\|^2, \quad
        \tilde{G} = \mathrm{diag}(q_t)^{-1/2} \, G \, \mathrm{diag}(s_t)^{-1/2}, \quad
        \Delta = \alpha \eta \tilde{G}

    The iteration starts from :math:`q = 1`; :math:`q_t, s_t` are moving averages of its
    results, and :math:`\eta` is the limiter of `limit_norm_growth`. As in the paper, G
    is ``m x n`` with ``m <= n``: our (out, in) matrices with more outputs than inputs
    are transposed. State: ``m + n + 1`` numbers, one more with bias correction.

    The update of the paper has no bound. If a gradient consists of separate blocks
    (masks, sparse inputs), s and q vanish on all blocks but one, and one large entry
    has nearly the same effect. With ``max_rms``, no row of :math:`\Delta` exceeds a
    root mean square of ``scale * max_rms / (1 - b1)``, which is 2 by default. Usual
    values are 0.5 in the first steps and 0.05 later.

    In float32, entries below 1e-19 of the largest entry of their matrix count as zero.

    Put `optax.clip_by_global_norm` in front. A gradient of 1e20 stays in the averages
    for about :math:`\ln(10^{40}) / (-\ln\beta)` steps, 900 by default. During these,
    updates nearly vanish; afterwards they grow by only 1.01 per step.

    Args:
        learning_rate: Learning rate, a number or a schedule; 0.02 in the paper.
        b1: Decay rate :math:`\beta` of the averages of :math:`q` and :math:`s`.
        scale: Factor :math:`\alpha` of the update; the paper uses 0.02 for 1.3B.
        limiter: Largest growth of the update's norm per step.
        max_shrink: As in `limit_norm_growth`; None is the paper.
        max_rms: Bound of rows, as in `equilibrate_with_ema`; None is the paper.
        rounds: Number of rounds of the fixed-point iteration.
        bias_correction: Whether to divide the averages by :math:`1 - \beta^t`; the
            paper's first updates are 10, 5.3, ... times larger, hidden by its warm-up.
        weight_decay: Decoupled weight decay of all but vectors, a number or a schedule.
        mu_dtype: Dtype of the other leaves' first moment; None: the parameter's.
        **common: Keywords of every recipe, see `optax_matrix.recipes`.

    Returns:
        An optimizer of the whole tree. The paper does not state Adam's learning rate;
        here it is ``0.05 * learning_rate``, so 1e-3 at 0.02.

    Examples:
        >>> import jax.numpy as jnp, optax_matrix as om
        >>> tx = om.racs(1.0, scale=1.0, bias_correction=True)
        >>> params = {"kernel": jnp.array([[1.0, 2.0], [3.0, 6.0]])}
        >>> updates, _ = tx.update(params, tx.init(params), params)
        >>> (-updates["kernel"]).round(3).tolist()
        [[1.0, 1.0], [1.0, 1.0]]

    References:
        `Structured Fisher <https://arxiv.org/abs/2502.07752>`_, Algorithm 1 (RACS).
        Deviations: the state holds the roots of :math:`q` and :math:`s`, so that large
        and small gradients neither overflow nor vanish; an all-zero gradient leaves the
        state unchanged; ``max_shrink`` keeps one tiny gradient from slowing the run for
        thousands of steps; ``max_rms``, which acts on 0.4% of the updates of the
        examples' tiny LLaMA, all in the first ten steps.
    """
    chain = equilibrate_rank_one(
        b1,
        rounds=rounds,
        bias_correction=bias_correction,
        max_rms=max_rms,
        max_growth=limiter,
        max_shrink=max_shrink,
        scale=scale,
    )

    return Method(chain, other_b2=0.999, other_rate=0.05, stops=True)


scale_by_racs = direction(racs, without=["mu_dtype"])
