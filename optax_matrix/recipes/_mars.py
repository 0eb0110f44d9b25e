"""MARS-AdamW: Adam of a variance-reduced gradient."""

from typing import Unpack

import optax

from optax_matrix._arguments import Bound, Decay, Dtype, NotNegative, Positive, Rate
from optax_matrix.recipes._method import Method
from optax_matrix.recipes._recipe import Common, direction, recipe
from optax_matrix.transforms import correct_variance, in_float32, scale_by_amsgrad


@recipe
def mars_adamw(
    learning_rate: Rate,
    *,
    gamma: NotNegative = 0.025,
    b1: Decay = 0.95,
    b2: Decay = 0.99,
    eps: Positive = 1e-8,
    max_norm: Bound | None = 1.0,
    amsgrad: bool = False,
    weight_decay: Rate = 0.1,
    mu_dtype: Dtype | None = None,
    **common: Unpack[Common],
) -> Method:
    r"""MARS-AdamW for matrices, AdamW(0.9, 0.95) for the rest, at one learning rate.

    .. math::
        c_t = G_t + \gamma \frac{\beta_1}{1 - \beta_1} (G_t - G_{t-1}), \qquad
        \Delta_t = \mathrm{Adam}(c_t / \max(1, \|c_t\|_F))

    The state is two moments and the last gradient.

    Args:
        learning_rate: Learning rate, a number or a schedule; 6e-3, 3e-3 and 2e-3 for
            GPT-2 small, medium and large in the authors' code.
        gamma: Strength of the correction.
        b1: Decay rate of the first moment.
        b2: Decay rate of the second moment; MuonEq's tables have (0.9, 0.95).
        eps: Added to the root of the second moment.
        max_norm: Largest Frobenius norm of a corrected gradient; None for no clipping.
        amsgrad: Whether to divide by the largest second moment so far.
        weight_decay: Decoupled weight decay of all but vectors, a number or a schedule.
        mu_dtype: Dtype of the first moments (None: at least float32) and of the stored
            gradient (None: that of the parameter).
        **common: Keywords of every recipe, see `optax_matrix.recipes`.

    Returns:
        An optimizer of the whole tree.

    Examples:
        >>> import jax.numpy as jnp, optax_matrix as om
        >>> tx = om.mars_adamw(3e-3)
        >>> params = {"kernel": jnp.ones((4, 8)), "bias": jnp.zeros(8)}
        >>> updates, state = tx.update(params, tx.init(params), params)
        >>> updates["kernel"].shape
        (4, 8)

    References:
        Yuan et al., `MARS <https://arxiv.org/abs/2411.10438>`_, 2024, as in the
        authors' code. Deviation: the norm is clipped per matrix, where the authors clip
        a whole parameter; the two differ for stacked layers. If ``b1`` changes between
        steps, Adam's bias correction is that of its current value.
    """
    scale = scale_by_amsgrad if amsgrad else optax.scale_by_adam
    chain = optax.chain(
        correct_variance(gamma, b1, max_norm, accumulator_dtype=mu_dtype),
        in_float32(scale(b1, b2, eps, mu_dtype=mu_dtype)),
    )

    return Method(chain)


scale_by_mars_adamw = direction(mars_adamw)
