"""MuonEq: equilibrate the momentum, then take its polar factor."""

from functools import partial
from typing import Literal, Unpack

import optax

from optax_matrix._arguments import Decay, Dtype, Kernel, NotNegative, Rate
from optax_matrix.linalg import scale_columns, scale_rows, scale_rows_and_columns
from optax_matrix.recipes._method import Method
from optax_matrix.recipes._recipe import Common, direction, recipe
from optax_matrix.transforms import equilibrate, momentum, orthogonalize, scale_by_shape
from optax_matrix.transforms.update_size import Scaling

_SCALINGS = {
    "row": [scale_rows],
    "col": [scale_columns],
    "rowcol": [scale_rows_and_columns],
    None: [],
}


@recipe
def muoneq(
    learning_rate: Rate,
    *,
    mode: Literal["row", "col", "rowcol"] | None = "row",
    b1: Decay = 0.95,
    nesterov: bool = True,
    eps: NotNegative = 1e-8,
    polar: Kernel = "newton_schulz",
    scaling: Scaling = "max",
    weight_decay: Rate = 0.1,
    mu_dtype: Dtype | None = None,
    **common: Unpack[Common],
) -> Method:
    r"""MuonEq for matrices, AdamW(0.9, 0.95) for the rest, at one learning rate.

    .. math::
        M_t = \beta M_{t-1} + (1 - \beta) G_t, \quad
        \tilde{M}_t = \beta M_t + (1 - \beta) G_t, \\
        \Delta_t = 0.2 \sqrt{\max(m, n)} \,
            \mathrm{polar}(D_r^{-1/2} \tilde{M}_t D_c^{-1/2})

    where :math:`D_r` and :math:`D_c` are the squared row and column norms of
    :math:`\tilde{M}_t`, or the identity, as ``mode`` says: the default ``"row"`` uses
    :math:`D_r` alone. The state is one momentum per matrix.

    Args:
        learning_rate: Learning rate, a number or a schedule; 3e-3 (130M parameters) and
            2e-3 (350M) in the paper.
        mode: ``"row"`` scales output neurons, ``"col"`` inputs, ``"rowcol"`` both; None
            is Muon with Moonlight's scaling.
        b1: Decay rate :math:`\beta` of the momentum.
        nesterov: Whether to look one step ahead.
        eps: Added to squared norms, relative to their mean.
        polar: Kernel that returns the polar factor.
        scaling: Rule of `scale_by_shape`: ``"max"``, the factor above, ``"out/in"``,
            ``"unclipped"``, ``"sum"``, ``"none"``, or a number, a function of
            ``(rows, cols)`` or `target_rms`.
        weight_decay: Decoupled weight decay of all but vectors, a number or a schedule.
        mu_dtype: Dtype of the momenta; None for that of the parameter.
        **common: Keywords of every recipe, see `optax_matrix.recipes`.

    Returns:
        An optimizer of the whole tree.

    Examples:
        >>> import jax.numpy as jnp, optax_matrix as om
        >>> tx = om.muoneq(3e-3)
        >>> params = {"kernel": jnp.ones((4, 8)), "bias": jnp.zeros(8)}
        >>> updates, state = tx.update(params, tx.init(params), params)
        >>> updates["kernel"].shape
        (4, 8)

    References:
        `MuonEq <https://arxiv.org/abs/2603.28254>`_, Algorithm 1. Deviations: ``eps``
        is relative to the matrix, so that the update does not depend on the scale of
        the loss; the look-ahead uses :math:`\beta_t`, where the paper has
        :math:`\beta_{t+1}`, which differs only if ``b1`` changes between steps;
        Newton-Schulz has the precision of `muon`'s.
    """
    scalings = [partial(scale, eps=eps) for scale in _SCALINGS[mode]]
    chain = optax.chain(
        momentum(b1, nesterov=nesterov, dtype=mu_dtype),
        *map(equilibrate, scalings),
        orthogonalize(polar),
        scale_by_shape(scaling),
    )

    return Method(chain)


scale_by_muoneq = direction(muoneq)
