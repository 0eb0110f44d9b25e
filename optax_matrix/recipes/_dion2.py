"""Dion2: the polar factor of a few rows of the momentum, with error feedback."""

from functools import partial
from typing import Unpack

import optax

from optax_matrix._arguments import Decay, Dtype, Kernel, Rank, Rate
from optax_matrix.linalg import POLAR_EXPRESS, newton_schulz, started_below
from optax_matrix.recipes._method import Method
from optax_matrix.recipes._recipe import Common, direction, recipe
from optax_matrix.transforms import orthogonalize_selected, scale_by_shape
from optax_matrix.transforms.update_size import Scaling

_TABLE = started_below(POLAR_EXPRESS, 1.02)


@recipe
def dion2(
    learning_rate: Rate,
    *,
    fraction: Rank = 0.25,
    b1: Decay = 0.95,
    polar: Kernel | None = None,
    scaling: Scaling = "unclipped",
    weight_decay: Rate = 0.01,
    mu_dtype: Dtype | None = None,
    **common: Unpack[Common],
) -> Method:
    r"""Dion2 for matrices, AdamW(0.9, 0.95) for the rest, at one learning rate.

    .. math::
        B = M_{t-1} + G_t, \quad
        \Delta_K = c \, \mathrm{polar}(B_K), \quad \Delta_{\bar K} = 0, \quad
        M_K = \beta_1 B_K, \quad M_{\bar K} = B_{\bar K}

    where K are the rows of B with the largest sums of absolute values (the columns, if
    there are fewer), and c is given by ``scaling``. The state is one momentum per
    matrix.

    Args:
        learning_rate: Learning rate, a number or a schedule; 0.01 in the authors' code.
        fraction: Number of rows: a float for a fraction of the shorter side, rounded
            up, or an int. 1.0 is Muon.
        b1: Decay rate of the momentum of the chosen rows.
        polar: Kernel that returns the polar factor; None for `linalg.newton_schulz`
            with ``coefficients=linalg.POLAR_EXPRESS``, from 1.02 times the norm, as its
            authors have.
        scaling: Rule of `scale_by_shape`: ``"unclipped"`` (:math:`\sqrt{m/n}`),
            ``"max"``, ``"out/in"``, ``"sum"``, ``"none"``, or a number, a function of
            ``(rows, cols)`` or `target_rms`.
        weight_decay: Decoupled weight decay of all but vectors, a number or a schedule.
        mu_dtype: Dtype of the momenta; None for that of the parameter.
        **common: Keywords of every recipe, see `optax_matrix.recipes`.

    Returns:
        An optimizer of the whole tree.

    Examples:
        >>> import jax, jax.numpy as jnp, optax_matrix as om
        >>> tx = om.dion2(1.0, fraction=1, polar="polar_svd", weight_decay=0.0)
        >>> params = {"kernel": jnp.array([[3.0, 6.0], [4.0, 8.0]])}  # (in, out)
        >>> updates, _ = jax.jit(tx.update)(params, tx.init(params), params)
        >>> (-updates["kernel"]).round(3).tolist()
        [[0.0, 0.6...], [0.0, 0.8...]]

    References:
        Ahn et al., `Dion2 <https://arxiv.org/abs/2512.16928>`_, 2025, and its authors'
        code, whose defaults these are. Deviations: those of `orthogonalize_selected`;
        Newton-Schulz has the precision of `muon`'s.
    """
    steps = orthogonalize_selected(
        fraction,
        decay=b1,
        polar=polar or partial(newton_schulz, coefficients=_TABLE),
        accumulator_dtype=mu_dtype,
    )
    chain = optax.chain(steps, scale_by_shape(scaling))

    return Method(chain, stops=False)


scale_by_dion2 = direction(dion2)
