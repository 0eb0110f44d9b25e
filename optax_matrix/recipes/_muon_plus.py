"""Muon+: normalize the polar factor of the momentum."""

from functools import partial
from typing import Literal, Unpack

import optax

from optax_matrix._arguments import Decay, Dtype, Kernel, NotNegative, Rate
from optax_matrix.linalg import scale_columns, scale_rows
from optax_matrix.recipes._method import Method
from optax_matrix.recipes._recipe import Common, direction, recipe
from optax_matrix.transforms import equilibrate, momentum, orthogonalize, scale_by_shape
from optax_matrix.transforms.update_size import Scaling

_SCALINGS = {
    "row": [scale_rows],
    "col": [scale_columns],
    "colrow": [scale_columns, scale_rows],
    "rowcol": [scale_rows, scale_columns],
}


@recipe
def muon_plus(
    learning_rate: Rate,
    *,
    mode: Literal["row", "col", "colrow", "rowcol"] = "colrow",
    b1: Decay = 0.95,
    nesterov: bool = True,
    eps: NotNegative = 1e-8,
    polar: Kernel = "newton_schulz",
    scaling: Scaling = "unclipped",
    weight_decay: Rate = 0.1,
    mu_dtype: Dtype | None = None,
    **common: Unpack[Common],
) -> Method:
    r"""Muon+ for matrices, AdamW(0.9, 0.95) for the rest, at one learning rate.

    .. math::
        \Delta_t = \sqrt{m/n} \; \mathrm{normalize}(\mathrm{polar}(\tilde{M}_t))

    where columns and rows are divided by their norms, one after the other. With
    ``"colrow"`` every row (output neuron) ends with norm :math:`\sqrt{m/n}`. The state
    is one momentum per matrix.

    Args:
        learning_rate: Learning rate, a number or a schedule; 0.02, as for `muon`.
        mode: ``"row"``, ``"col"``, ``"colrow"`` (columns first) or ``"rowcol"``.
        b1: Decay rate of the momentum.
        nesterov: Whether to look one step ahead.
        eps: Added to squared norms, relative to their mean.
        polar: Kernel that returns the polar factor.
        scaling: Rule of `scale_by_shape`: ``"unclipped"``, the factor above, ``"max"``,
            ``"out/in"``, ``"sum"``, ``"none"``, or a number, a function of
            ``(rows, cols)`` or `target_rms`.
        weight_decay: Decoupled weight decay of all but vectors, a number or a schedule.
        mu_dtype: Dtype of the momenta; None for that of the parameter.
        **common: Keywords of every recipe, see `optax_matrix.recipes`.

    Returns:
        An optimizer of the whole tree.

    Examples:
        >>> import jax.numpy as jnp, optax_matrix as om
        >>> tx = om.muon_plus(3e-3)
        >>> params = {"kernel": jnp.ones((4, 8)), "bias": jnp.zeros(8)}
        >>> updates, state = tx.update(params, tx.init(params), params)
        >>> updates["kernel"].shape
        (4, 8)

    References:
        Zhang et al., `Muon+ <https://arxiv.org/abs/2602.21545>`_, 2026. The authors'
        code defaults to no normalization; ``"colrow"`` is what MuonEq compares with.
        Nesterov momentum is on as in the authors' code, and off in MuonEq's copy.
        Deviations: ``eps`` is relative; Newton-Schulz has the precision of `muon`'s.
    """
    scalings = [partial(scale, eps=eps) for scale in _SCALINGS[mode]]
    chain = optax.chain(
        momentum(b1, nesterov=nesterov, dtype=mu_dtype),
        orthogonalize(polar),
        *map(equilibrate, scalings),
        scale_by_shape(scaling),
    )

    return Method(chain)


scale_by_muon_plus = direction(muon_plus)
