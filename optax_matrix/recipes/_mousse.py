"""Mousse: the polar factor of a preconditioned momentum."""

from functools import partial
from typing import Literal, Unpack

import optax

from optax_matrix._arguments import Decay, Dtype, Kernel, NotNegative, PositiveInt, Rate
from optax_matrix.linalg import YOU, newton_schulz
from optax_matrix.recipes._method import Method
from optax_matrix.recipes._recipe import Common, direction, recipe
from optax_matrix.stacks.orientation import sides_within
from optax_matrix.transforms import (
    momentum,
    orthogonalize,
    precondition,
    scale_by_shape,
)
from optax_matrix.transforms.sides import MatrixSide
from optax_matrix.transforms.update_size import Scaling


@recipe
def mousse(
    learning_rate: Rate,
    *,
    b1: Decay = 0.95,
    b2: Decay = 0.95,
    root: PositiveInt = 8,
    side: MatrixSide = "both",
    max_dim: PositiveInt | None = None,
    block_size: PositiveInt | None = None,
    nesterov: bool = False,
    polar: Kernel | None = None,
    scaling: Scaling = "max",
    eps: NotNegative = 1e-6,
    method: Literal["newton", "eigh"] = "newton",
    update_interval: PositiveInt = 10,
    weight_decay: Rate = 0.1,
    mu_dtype: Dtype | None = None,
    **common: Unpack[Common],
) -> Method:
    r"""Mousse for matrices, AdamW(0.9, 0.95) for the rest, at one learning rate.

    .. math::
        M_t = \beta_1 M_{t-1} + (1 - \beta_1) G_t, \quad
        O_t = \mathrm{polar}(L^{-1/8} M_t R^{-1/8}), \quad
        \Delta_t = c \, \frac{\|O_t\|}{\|D_t\|} D_t, \quad
        D_t = L^{-1/8} O_t R^{-1/8}

    where L and R are the averages of :math:`G G^\top` and :math:`G^\top G`, and c is
    given by ``scaling``. The state is a momentum per matrix, and two matrices of each
    side (average and root). With ``scaling="max"`` updates are as large as those of
    AdamW.

    Args:
        learning_rate: Learning rate, a number or a schedule; 2e-3 for GPT-2 small in
            MuonEq's paper.
        b1: Decay rate of the momentum.
        b2: Decay rate of the averages of the Gram matrices.
        root: The root; 8 is the power 0.125 of the paper.
        side: ``"both"``, or one side only: ``"out"``, ``"in"``, ``"short"``.
        max_dim: Longer sides have no factor; None for no bound. With ``block_size`` the
            sides of blocks count. The paper has no bound; `init` warns of a side of
            more than 10,000 that is 16 times the other one.
        block_size: Largest side of the blocks that a matrix is cut into, each with
            factors of its own, as in Distributed Shampoo; the polar factor and the norm
            are those of the whole matrix. None for whole matrices, whose averages and
            roots have 2 (m/n + n/m) numbers per weight, 8.5 for 4096 x 16384. In square
            blocks they have 4.
        nesterov: Whether to look one step ahead: :math:`\beta_1 M_t + (1 - \beta_1)
            G_t`.
        polar: Kernel that returns the polar factor; None for `linalg.newton_schulz`
            with ``coefficients=linalg.YOU``, as its authors have.
        scaling: Rule of `scale_by_shape`: ``"max"``, ``"out/in"``, ``"unclipped"``,
            ``"sum"``, ``"none"``, or a number, a function of
            ``(rows, cols)`` or `target_rms`.
        eps: Added to the diagonals, relative to the largest eigenvalue.
        method: ``"newton"`` (products only) or ``"eigh"`` (much faster on a CPU), of
            `linalg.inverse_root`.
        update_interval: The roots are renewed at steps 1, K + 1, 2K + 1, ...
        weight_decay: Decoupled weight decay of all but vectors, a number or a schedule.
        mu_dtype: Dtype of the momenta; None for that of the parameter.
        **common: Keywords of every recipe, see `optax_matrix.recipes`.

    Returns:
        An optimizer of the whole tree.

    Examples:
        >>> import jax, jax.numpy as jnp, optax_matrix as om
        >>> options = {"polar": om.linalg.polar_svd, "scaling": "none"}
        >>> tx = om.mousse(1.0, weight_decay=0.0, **options)
        >>> params = {"kernel": jnp.diag(jnp.array([3.0, 3.0]))}
        >>> updates, _ = jax.jit(tx.update)(params, tx.init(params), params)
        >>> (-updates["kernel"]).round(3).tolist()
        [[1.0, 0.0], [0.0, 1.0]]

    References:
        Zhang et al., `Mousse <https://arxiv.org/abs/2603.09697>`_, 2026, and its
        authors' code. Deviations: neither the bias correction of the averages nor
        their trace is divided out, as the grafting undoes every factor; epsilon is
        relative to the largest eigenvalue and 1e-6, where the code has 2e-10 of the
        mean, which is beyond float32; roots are taken by coupled Newton iterations, so
        that no eigendecomposition is compiled; ``scaling="max"`` is Moonlight's, which
        makes updates as large as those of AdamW.
    """
    preconditioned = precondition(
        orthogonalize(polar or partial(newton_schulz, coefficients=YOU)),
        power=1 / root,
        side=lambda layout: sides_within(layout, side, max_dim, block_size),
        block_size=block_size,
        decay=b2,
        eps=eps,
        method=method,
        update_interval=update_interval,
        momentum=momentum(b1, nesterov=nesterov, dtype=mu_dtype),
        graft=True,
    )
    chain = optax.chain(preconditioned, scale_by_shape(scaling))

    return Method(chain)


scale_by_mousse = direction(mousse)
