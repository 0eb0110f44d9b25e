"""Dion: a low-rank orthonormal update with error feedback."""

from typing import Unpack

import optax

from optax_matrix._arguments import Decay, Dtype, Kernel, Rank, Rate
from optax_matrix.recipes._method import Method
from optax_matrix.recipes._recipe import Common, direction, recipe
from optax_matrix.transforms import orthogonalize_low_rank, scale_by_shape
from optax_matrix.transforms.update_size import Scaling


@recipe
def dion(
    learning_rate: Rate,
    *,
    rank: Rank = 1.0,
    b1: Decay = 0.95,
    scaling: Scaling = "unclipped",
    qr: Kernel = "cholesky_qr",
    weight_decay: Rate = 0.01,
    mu_dtype: Dtype | None = None,
    **common: Unpack[Common],
) -> Method:
    r"""Dion for matrices, AdamW(0.9, 0.95) for the rest, at one learning rate.

    .. math::
        B = M_{t-1} + G_t, \quad P = \mathrm{qr}(B Q_{t-1}), \quad R = B^\top P, \quad
        M_t = B - (1 - \beta_1) P R^\top, \quad \Delta_t = c \, P Q_t^\top

    where :math:`Q_t` is R with columns of norm one, and c is given by ``scaling``. The
    state is a momentum and a right factor, ``n * rank``, per matrix.

    Args:
        learning_rate: Learning rate, a number or a schedule; 0.01 in the paper.
        rank: Number of columns: an int, or a float for a fraction of the shorter side,
            rounded up. 1.0 is full rank.
        b1: Decay rate of the momentum.
        scaling: Rule of `scale_by_shape`: ``"unclipped"`` (the paper's
            :math:`\sqrt{m/n}`), ``"max"``, ``"out/in"``, ``"sum"``, ``"none"``, or
            a number, a function of ``(rows, cols)`` or `target_rms`.
        qr: Kernel that orthonormalizes columns, as in `rotate`.
        weight_decay: Decoupled weight decay of all but vectors, a number or a schedule.
        mu_dtype: Dtype of the momenta; None for that of the parameter.
        **common: Keywords of every recipe, see `optax_matrix.recipes`.

    Returns:
        An optimizer of the whole tree.

    Examples:
        >>> import jax, jax.numpy as jnp, optax_matrix as om
        >>> tx = om.dion(1.0, rank=1, weight_decay=0.0)
        >>> params = {"kernel": jnp.array([[3.0, 6.0], [4.0, 8.0]])}  # Rank one.
        >>> updates, _ = jax.jit(tx.update)(params, tx.init(params), params)
        >>> (-updates["kernel"]).round(3).tolist()
        [[0.268..., 0.537...], [0.358..., 0.716...]]

    References:
        Ahn et al., `Dion <https://arxiv.org/abs/2504.05295>`_, 2025, Algorithm 1.
        Deviations: those of `orthogonalize_low_rank`; AdamW for the other leaves, where
        the authors use Lion. At full rank it is close to ``aro(base="row_norm",
        policy="eigen", orientation="out")``, but its right factor is that of the last
        step.
    """
    steps = orthogonalize_low_rank(
        rank,
        decay=b1,
        qr=qr,
        accumulator_dtype=mu_dtype,
    )
    chain = optax.chain(steps, scale_by_shape(scaling))

    return Method(chain, stops=False)


scale_by_dion = direction(dion)
