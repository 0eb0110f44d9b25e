"""NorMuon: divide each row of the polar factor by its averaged norm."""

from typing import Literal, Unpack

import optax

from optax_matrix._arguments import Decay, Dtype, Kernel, Rate
from optax_matrix.recipes._method import Method
from optax_matrix.recipes._recipe import Common, direction, recipe
from optax_matrix.transforms import (
    equilibrate_with_ema,
    momentum,
    orthogonalize,
    preserve_norm,
    row_rms,
)
from optax_matrix.transforms.update_size import Scaling, TargetRms, matched


@recipe
def normuon(
    learning_rate: Rate,
    *,
    b1: Decay = 0.95,
    b2: Decay = 0.95,
    nesterov: bool = True,
    polar: Kernel = "newton_schulz",
    scaling: Literal["rms"] | Scaling = "rms",
    weight_decay: Rate = 0.1,
    mu_dtype: Dtype | None = None,
    **common: Unpack[Common],
) -> Method:
    r"""NorMuon for matrices, AdamW(0.9, 0.95) for the rest, at one learning rate.

    .. math::
        O_t = \mathrm{polar}(\tilde{M}_t), \quad
        v_t = \beta_2 v_{t-1} + (1 - \beta_2) \, \mathrm{mean}_j O_{t,ij}^2, \quad
        \hat{O}_t = \mathrm{diag}(v_t)^{-1/2} O_t

    The average has one number per row, that is, per output neuron. The matrix is then
    scaled as ``scaling`` says. The state is a momentum and ``m`` numbers per matrix.

    Args:
        learning_rate: Learning rate, a number or a schedule; start at 3e-3, as with
            `muoneq`. The 0.02 of the authors' code is for updates of another size.
        b1: Decay rate of the momentum.
        b2: Decay rate of the second moment of the rows.
        nesterov: Whether to look one step ahead.
        polar: Kernel that returns the polar factor.
        scaling: ``"rms"`` scales to a root mean square of 0.2 (the paper), ``"out/in"``
            to the norm of :math:`O_t` times Keller Jordan's factor (the authors' code);
            or another rule of `scale_by_shape`, a number, a function of
            ``(rows, cols)`` or `target_rms`.
        weight_decay: Decoupled weight decay of all but vectors, a number or a schedule.
        mu_dtype: Dtype of the momenta; None for that of the parameter.
        **common: Keywords of every recipe, see `optax_matrix.recipes`.

    Returns:
        An optimizer of the whole tree.

    Examples:
        >>> import jax.numpy as jnp, optax_matrix as om
        >>> tx = om.normuon(3e-3)
        >>> params = {"kernel": jnp.ones((4, 8)), "bias": jnp.zeros(8)}
        >>> updates, state = tx.update(params, tx.init(params), params)
        >>> updates["kernel"].shape
        (4, 8)

    References:
        Li et al., `NorMuon <https://arxiv.org/abs/2510.05491>`_, 2025. Deviations:
        Nesterov momentum as in the authors' code (the paper has plain momentum); rows
        of zeros stay zero instead of an epsilon; a polar factor that is all zero leaves
        :math:`v` unchanged; Newton-Schulz has the precision of `muon`'s.
    """
    per_row = equilibrate_with_ema(row_rms, b2)
    keeps = scaling != "rms" and not isinstance(scaling, TargetRms)
    sized = [preserve_norm(per_row) if keeps else per_row, matched(scaling)]
    chain = optax.chain(
        momentum(b1, nesterov=nesterov, dtype=mu_dtype),
        orthogonalize(polar),
        *sized,
    )

    return Method(chain)


scale_by_normuon = direction(normuon)
