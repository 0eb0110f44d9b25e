"""KL-Shampoo: Kronecker factors of the gradient's covariance, each whitened first."""

from typing import Literal, Unpack

from optax_matrix._arguments import Decay, Dtype, Kernel, PositiveInt, Rate
from optax_matrix.recipes._method import Method
from optax_matrix.recipes._recipe import Common, direction, recipe
from optax_matrix.stacks.orientation import sides_within
from optax_matrix.transforms import (
    in_blocks,
    in_eigenbasis,
    momentum,
    scale_by_spectrum,
)
from optax_matrix.transforms.sides import MatrixSide


@recipe
def kl_shampoo(
    learning_rate: Rate,
    *,
    b1: Decay = 0.9,
    b2: Decay = 0.98,
    policy: Literal["eigen", "eigen_exact", "identity"] = "eigen",
    update_interval: PositiveInt = 10,
    side: MatrixSide = "both",
    max_dim: PositiveInt | None = 10_000,
    block_size: PositiveInt | None = None,
    qr: Kernel = "cholesky_qr",
    weight_decay: Rate = 0.01,
    mu_dtype: Dtype | None = None,
    **common: Unpack[Common],
) -> Method:
    r"""KL-Shampoo for matrices, AdamW(0.9, 0.95) for the rest, at one learning rate.

    .. math::
        L_t = \beta_2 L_{t-1} + \tfrac{1 - \beta_2}{n} G_t R_{t-1}^{-1} G_t^\top, \quad
        R_t = \beta_2 R_{t-1} + \tfrac{1 - \beta_2}{m} G_t^\top L_{t-1}^{-1} G_t,
        \qquad \Delta_t = L_t^{-1/2} M_t R_t^{-1/2}

    where :math:`M_t` is the average of the gradients. The powers use orthogonal bases
    U and eigenvalues :math:`\lambda` in the place of the factors: the eigenvalues are
    averages of the diagonal of :math:`U^\top G R^{-1} G^\top U / n`, of every step, and
    the bases follow the factors at intervals. A side without a basis keeps a diagonal
    factor. The state is a momentum, two matrices of each rotated side (factor and
    basis) and the eigenvalues of each side. There is no second moment of the entries
    as in `soap`, and updates are still as large as those of AdamW.

    Args:
        learning_rate: Learning rate, a number or a schedule; 3e-3, as for `soap`, where
            the study begins.
        b1: Decay rate of the momentum.
        b2: Decay rate of the factors and of the eigenvalues.
        policy: ``"eigen"``, one power step from the last basis per renewal;
            ``"eigen_exact"``, an eigendecomposition; ``"identity"``, diagonal factors.
        update_interval: The bases are renewed at steps 1, K, 2K, ...
        side: Which sides have a basis: ``"both"``, ``"out"``, ``"in"``, ``"short"``.
        max_dim: Larger sides have none; None for no bound.
        block_size: Largest side of the blocks that a matrix is cut into, each of which
            is rotated as a matrix of its own (`transforms.in_blocks`), as in
            Distributed Shampoo; None for whole matrices. Averages and bases of both
            sides have 2 (m/n + n/m) numbers per weight, 8.5 for 4096 x 16384, and 4 in
            square blocks. ``max_dim`` bounds the sides of blocks; ``side="short"`` is
            the shorter side of the whole matrix.
        qr: Kernel that orthonormalizes columns, as in `rotate`.
        weight_decay: Decoupled weight decay of all but vectors, a number or a schedule.
        mu_dtype: Dtype of the momenta; None for that of the parameter.
        **common: Keywords of every recipe, see `optax_matrix.recipes`.

    Returns:
        An optimizer of the whole tree.

    Examples:
        >>> import jax, jax.numpy as jnp, optax_matrix as om
        >>> tx = om.kl_shampoo(1.0, b1=0.0, weight_decay=0.0)
        >>> params = {"kernel": jnp.diag(jnp.array([3.0, 3.0]))}
        >>> updates, _ = jax.jit(tx.update)(params, tx.init(params), params)
        >>> (-updates["kernel"]).round(3).tolist()
        [[1.496..., 0.0], [0.0, 1.496...]]

    References:
        Lin et al., `KL-Shampoo <https://arxiv.org/abs/2509.03378>`_, 2025, with QR and
        estimated eigenvalues. The defaults are those of the authors' code. Deviations
        from that code: statistics include a gradient before it is used and not after,
        so that the first step is an update, where the code has none; bases start at the
        identity and move by power steps, where the code decomposes once; at a renewal
        eigenvalues see the gradient in the new basis; they start at the root mean
        square of the first gradient, rounded to a power of two, where the code starts
        at 0.1, so that updates hardly depend on the scale of the loss; the scale of the
        gradients is not averaged twice (by the letter a matrix whose gradients grow
        1e4-fold rests for a hundred steps, see ``tests/recipes/test_kl_shampoo.py``):
        where a gradient is zero, both sides decay by the root of :math:`\beta_2`; where
        it makes up most of the averages of the rows, and of the columns, one number
        divides what it adds to both sides, and not what they keep; a row that grows
        alone so far, as one that comes back after steps without gradient, counts for
        its own eigenvalue and hardly for those of the columns, nor a column for rows;
        the least eigenvalue of a side is 1e-6 of its largest, where the code bounds
        inverse roots by the length of the side, and by 10 and 4000, and has an epsilon
        of 1e-8, all of them absolute numbers; entries of updates in the frame that
        exceed :math:`\sqrt{\min(m, n) / (\beta_2 (1 - \beta_2))}` are reduced
        (`scale_by_spectrum`), and no entry is divided by less than the rounding noise
        of the stored momentum; rows and columns of the rotated gradient and momentum
        that are rounding noise count as zero (`rotate`); weight decay applies to the
        old weights, there to the new ones.
    """
    rotated = in_eigenbasis(
        scale_by_spectrum(b2),
        policy=policy,
        side=lambda layout: sides_within(layout, side, max_dim, block_size),
        qr=qr,
        update_interval=update_interval,
        statistics="kl",
        decay=b2,
        momentum=momentum(b1, dtype=mu_dtype),
    )
    chain = in_blocks(rotated, block_size)

    return Method(chain)


scale_by_kl_shampoo = direction(kl_shampoo)
