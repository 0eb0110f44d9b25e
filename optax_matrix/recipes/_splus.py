"""SPlus: signs in the two-sided eigenbasis of the averaged gradient."""

from typing import Literal, Unpack

import optax

from optax_matrix._arguments import (
    Decay,
    Dtype,
    Kernel,
    NotNegative,
    Positive,
    PositiveInt,
    Rate,
)
from optax_matrix.recipes._method import Method
from optax_matrix.recipes._recipe import Common, direction, recipe
from optax_matrix.stacks.map_matrices import on_mapped_params
from optax_matrix.stacks.orientation import sides_within
from optax_matrix.transforms import (
    in_blocks,
    in_eigenbasis,
    momentum,
    scale_by_shape,
    smooth_sign,
)
from optax_matrix.transforms.sides import MatrixSide
from optax_matrix.transforms.update_size import SHAPE_RULES


@recipe
def splus(
    learning_rate: Rate,
    *,
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    scale: Positive = 2.0,
    policy: Literal["eigen", "eigen_exact", "identity"] = "eigen",
    update_interval: PositiveInt = 10,
    side: MatrixSide = "both",
    max_dim: PositiveInt | None = 10_000,
    block_size: PositiveInt | None = None,
    eps: NotNegative = 0.0,
    qr: Kernel = "cholesky_qr",
    weight_decay: Rate = 0.01,
    mu_dtype: Dtype | None = None,
    **common: Unpack[Common],
) -> Method:
    r"""SPlus for matrices, AdamW(0.9, 0.95) for the rest.

    .. math::
        M_t = \beta_1 M_{t-1} + (1 - \beta_1) G_t, \qquad
        \Delta_t = \frac{c}{m + n} \, U_L \,
        \mathrm{sign}(U_L^\top M_t U_R) \, U_R^\top

    where U holds the eigenvectors of the averages of :math:`G G^\top` and
    :math:`G^\top G`, renewed after the update. The state is a momentum per matrix, and
    two matrices of each rotated side (average and basis).

    An update has a root mean square of c / (m + n), so learning rates are much larger
    than those of AdamW.

    Args:
        learning_rate: Learning rate, a number or a schedule; 0.1 to 0.2 in the paper.
        b1: Decay rate of the momentum.
        b2: Decay rate of the averages of the Gram matrices.
        scale: The factor c: 2, in the paper and, since June 2025, in its authors' code.
        policy: ``"eigen"``, one power step from the last basis per renewal;
            ``"eigen_exact"``, an eigendecomposition; ``"identity"``, which is sign
            descent.
        update_interval: The bases are renewed at steps 1, K, 2K, ...; the paper has
            100 for exact eigenvectors.
        side: ``"both"``, or one side only: ``"out"``, ``"in"``, ``"short"``.
        max_dim: Larger sides do not rotate, as in the authors' code; None for no bound.
        block_size: Largest side of the blocks that a matrix is cut into, each of which
            is rotated as a matrix of its own (`transforms.in_blocks`), as in
            Distributed Shampoo; None for whole matrices. Averages and bases of both
            sides have 2 (m/n + n/m) numbers per weight, 8.5 for 4096 x 16384, and 4 in
            square blocks. Sides are those of blocks for ``max_dim``, too;
            the factor c / (m + n) is that of the whole matrix.
        eps: The sign of x is x / (\|x\| + ``eps`` max \|x\|), so that entries far below
            the largest of the rotated matrix, which are rounding noise, move little.
        qr: Kernel that orthonormalizes columns, as in `rotate`.
        weight_decay: Decoupled weight decay of all but vectors, a number or a schedule;
            that of matrices is scaled as below.
        mu_dtype: Dtype of the momenta; None for that of the parameter.
        **common: Keywords of every recipe, see `optax_matrix.recipes`.

    Returns:
        An optimizer of the whole tree. Without ``other_learning_rate``, that of AdamW
        is 0.001 times ``learning_rate``, as for leaves that the authors' code does not
        rotate. Weight decay has the factor of the updates, as in that code: per step a
        matrix loses :math:`\eta \lambda c / (m + n)` of itself, where :math:`\eta` is
        ``learning_rate`` and :math:`\lambda` ``weight_decay``.

    Examples:
        >>> import jax, jax.numpy as jnp, optax_matrix as om
        >>> tx = om.splus(1.0, weight_decay=0.0)
        >>> params = {"kernel": jnp.array([[3.0, -1.0], [0.0, 5.0]])}
        >>> updates, _ = jax.jit(tx.update)(params, tx.init(params), params)
        >>> (-updates["kernel"]).tolist()  # The first basis is the identity.
        [[0.5, -0.5], [0.0, 0.5]]

    References:
        Frans et al., `A Stable Whitening Optimizer
        <https://arxiv.org/abs/2506.07254>`_, 2025, and its authors' code. Deviations:
        the default renewal is a power step that starts from the identity (the paper is
        ``policy="eigen_exact", update_interval=100``), so that no eigendecomposition
        is compiled; rows of the rotated momentum that are rounding noise count as
        zero (`rotate`); the parameters are not averaged for evaluation, which
        `average_weights` does; a matrix with a side above ``max_dim`` keeps the factor
        c / (m + n), where the authors' PyTorch code gives it the rate of vectors;
        weight decay applies to the old weights, in that code to the new ones.
    """
    rotated = in_eigenbasis(
        smooth_sign(eps),
        policy=policy,
        side=lambda layout: sides_within(layout, side, max_dim, block_size),
        qr=qr,
        update_interval=update_interval,
        decay=b2,
        momentum=momentum(b1, dtype=mu_dtype),
        renew_after=True,
    )
    rotated = in_blocks(rotated, block_size)
    chain = optax.chain(rotated, scale_by_shape("sum"), optax.scale(scale))

    numbers = common.get("dimension_numbers")
    return Method(
        chain,
        wrap_decay=lambda decay: on_mapped_params(
            decay, _scaled, scale, dimension_numbers=numbers
        ),
        other_rate=0.001,
    )


def _scaled(w, ids, scale):
    """Matrices in the scale of their updates."""
    del ids
    return w * (scale * SHAPE_RULES["sum"](*w.shape[-2:]))


scale_by_splus = direction(splus)
