"""Muon²: the polar factor of Adam's direction."""

from functools import partial
from typing import Unpack

import optax

from optax_matrix._arguments import Decay, Dtype, Kernel, Rate
from optax_matrix.linalg import newton_schulz
from optax_matrix.recipes._method import Method
from optax_matrix.recipes._recipe import Common, direction, recipe
from optax_matrix.transforms import (
    momentum,
    orthogonalize,
    scale_by_second_moment,
    scale_by_shape,
    with_gradient,
)
from optax_matrix.transforms.update_size import Scaling


@recipe
def muon2(
    learning_rate: Rate,
    *,
    b1: Decay = 0.95,
    b2: Decay = 0.95,
    polar: Kernel | None = None,
    scaling: Scaling = "max",
    weight_decay: Rate = 0.1,
    mu_dtype: Dtype | None = None,
    **common: Unpack[Common],
) -> Method:
    r"""Muon² for matrices, AdamW(0.9, 0.95) for the rest, at one learning rate.

    .. math::
        M_t = \beta_1 M_{t-1} + (1 - \beta_1) G_t, \quad
        V_t = \beta_2 V_{t-1} + (1 - \beta_2) G_t^2, \quad
        \Delta_t = c \, \mathrm{polar}(M_t / \sqrt{V_t})

    where c is given by ``scaling``. Dividing by the second moment first makes the
    singular values more alike, so that fewer steps of Newton-Schulz are enough. The
    state is two moments per matrix.

    Args:
        learning_rate: Learning rate, a number or a schedule; start at 3e-3, as with
            `muoneq`, whose size of updates it has.
        b1: Decay rate of the momentum.
        b2: Decay rate of the second moment.
        polar: Kernel that returns the polar factor; None for three steps of
            `linalg.newton_schulz`, two fewer than in `muon`.
        scaling: Rule of `scale_by_shape`: ``"max"`` (Moonlight), ``"out/in"``,
            ``"unclipped"``, ``"sum"``, ``"none"``, or a number, a function of
            ``(rows, cols)`` or `target_rms`.
        weight_decay: Decoupled weight decay of all but vectors, a number or a schedule.
        mu_dtype: Dtype of the momenta; None for that of the parameter.
        **common: Keywords of every recipe, see `optax_matrix.recipes`.

    Returns:
        An optimizer of the whole tree.

    Examples:
        >>> import jax, jax.numpy as jnp, optax_matrix as om
        >>> tx = om.muon2(1.0, scaling="none", polar="polar_svd", weight_decay=0.0)
        >>> params = {"kernel": jnp.array([[3.0, 4.0], [4.0, -3.0]])}
        >>> updates, _ = jax.jit(tx.update)(params, tx.init(params), params)
        >>> (-updates["kernel"]).round(3).tolist()
        [[0.7..., 0.7...], [0.7..., -0.7...]]

    References:
        Liu et al., `Muon² <https://arxiv.org/abs/2604.09967>`_, 2026, Algorithm 1.
        Deviations: the momentum is an average where the paper has a sum, with the same
        polar factor; there is no epsilon; Newton-Schulz has the precision of that in
        `muon`; ``scaling="max"`` and the weight decay are those of `muoneq`, for the
        learning rate of AdamW.
    """
    moments = optax.chain(
        momentum(b1, dtype=mu_dtype), scale_by_second_moment(b2, bounded=False)
    )
    chain = optax.chain(
        with_gradient(moments),
        orthogonalize(
            polar or partial(newton_schulz, steps=3),
        ),
        scale_by_shape(scaling),
    )

    return Method(chain)


scale_by_muon2 = direction(muon2)
