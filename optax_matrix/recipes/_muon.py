"""Muon: take the polar factor of the momentum."""

from typing import Unpack

import optax

from optax_matrix._arguments import Decay, Dtype, Kernel, Rate
from optax_matrix.recipes._method import Method
from optax_matrix.recipes._recipe import Common, direction, recipe
from optax_matrix.transforms import momentum, orthogonalize, scale_by_shape
from optax_matrix.transforms.update_size import Scaling, TargetRms


@recipe
def muon(
    learning_rate: Rate,
    *,
    b1: Decay = 0.95,
    nesterov: bool = True,
    polar: Kernel = "newton_schulz",
    scaling: Scaling = "out/in",
    weight_decay: Rate | None = None,
    mu_dtype: Dtype | None = None,
    **common: Unpack[Common],
) -> Method:
    r"""Muon for matrices, AdamW(0.9, 0.95) for the rest.

    .. math::
        M_t = \beta M_{t-1} + (1 - \beta) G_t, \qquad
        \Delta_t = c \, \mathrm{polar}(\beta M_t + (1 - \beta) G_t)

    The factor :math:`c` is given by ``scaling``. Without Nesterov momentum the polar
    factor is that of :math:`M_t`. The state is one momentum per matrix.

    With ``scaling="out/in"`` this is the Muon of Keller Jordan. With ``"max"`` it is
    that of Moonlight, whose updates are as large as those of AdamW.

    Args:
        learning_rate: Learning rate of the matrices, a number or a schedule; 0.02 in
            the code of Keller Jordan. Moonlight uses the rate of AdamW, with
            ``scaling="max"``.
        b1: Decay rate :math:`\beta` of the momentum.
        nesterov: Whether to look one step ahead.
        polar: Kernel that returns the polar factor.
        scaling: Rule of `scale_by_shape`: ``"out/in"`` (Keller Jordan), ``"max"``
            (Moonlight), ``"unclipped"``, ``"sqrt_max"``, ``"sum"``, ``"none"``, or a
            number, a function of ``(rows, cols)`` or `target_rms`.
        weight_decay: Decoupled weight decay of all but vectors, a number or a schedule.
            None chooses by ``scaling``: 0.1 for ``"max"`` and `target_rms`, else 0.
        mu_dtype: Dtype of the momenta; None for that of the parameter.
        **common: Keywords of every recipe, see `optax_matrix.recipes`.

    Returns:
        An optimizer of the whole tree. Without ``other_learning_rate``, AdamW has
        ``learning_rate`` beside ``scaling="max"`` and `target_rms`, and 0.015 times
        that otherwise (Keller Jordan's 3e-4 beside 0.02).

    Examples:
        >>> import jax.numpy as jnp, optax_matrix as om
        >>> tx = om.muon(1.0, polar=om.linalg.polar_svd)
        >>> params = {"kernel": jnp.diag(jnp.array([3.0, 5.0]))}
        >>> updates, _ = tx.update(params, tx.init(params), params)
        >>> (-updates["kernel"]).round(3).tolist()
        [[1.0, 0.0], [0.0, 1.0]]

    References:
        Jordan et al., `Muon <https://kellerjordan.github.io/posts/muon/>`_, 2024.
        Liu et al., `Muon is scalable for LLM training
        <https://arxiv.org/abs/2502.16982>`_, 2025. The momentum is an average, as in
        Jordan's code; Moonlight's is a sum, which has the same polar factor.
        `optax.contrib.muon` corrects the bias of both terms of the look-ahead: with
        random gradients, directions differ by 10% at the second step, 3% at the tenth
        and 0.2% at the fortieth.
        Newton-Schulz runs in bfloat16 on TPUs and recent NVIDIA GPUs, as the authors'
        does, and in at least float32 on CPUs and with ``precision="exact"``.
    """
    chain = optax.chain(
        momentum(b1, nesterov=nesterov, dtype=mu_dtype),
        orthogonalize(polar),
        scale_by_shape(scaling),
    )

    is_moonlight = scaling == "max" or isinstance(scaling, TargetRms)
    if weight_decay is None:
        weight_decay = 0.1 if is_moonlight else 0.0
    # Keller Jordan has 3e-4 for AdamW beside 0.02 for Muon.
    other_rate = None if is_moonlight else 0.015
    return Method(chain, weight_decay=weight_decay, other_rate=other_rate)


scale_by_muon = direction(muon)
