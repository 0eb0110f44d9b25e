"""SOAP: Adam in the two-sided eigenbasis of the averaged gradient."""

from typing import Literal, Unpack

from optax_matrix._arguments import Decay, Dtype, Kernel, NotNegative, PositiveInt, Rate
from optax_matrix.recipes._method import Method
from optax_matrix.recipes._recipe import Common, direction, preset, recipe
from optax_matrix.stacks.orientation import sides_within
from optax_matrix.transforms import (
    in_blocks,
    in_eigenbasis,
    momentum,
    scale_by_second_moment,
)
from optax_matrix.transforms.sides import MatrixSide


@recipe
def soap(
    learning_rate: Rate,
    *,
    b1: Decay = 0.95,
    b2: Decay = 0.95,
    b3: Decay = 0.95,
    policy: Literal["eigen", "eigen_exact", "identity"] = "eigen",
    update_interval: PositiveInt = 10,
    statistics: Literal["gradient", "kl"] = "gradient",
    side: MatrixSide = "both",
    max_dim: PositiveInt | None = 10_000,
    block_size: PositiveInt | None = None,
    bias_correction: bool = True,
    bounded: bool = True,
    eps: NotNegative = 0.0,
    qr: Kernel = "cholesky_qr",
    weight_decay: Rate = 0.01,
    mu_dtype: Dtype | None = None,
    **common: Unpack[Common],
) -> Method:
    r"""SOAP for matrices, AdamW(0.9, 0.95) for the rest, at one learning rate.

    .. math::
        L_t = \beta_3 L_{t-1} + (1 - \beta_3) G_t G_t^\top, \quad
        R_t = \beta_3 R_{t-1} + (1 - \beta_3) G_t^\top G_t, \\
        V_t = \beta_2 V_{t-1} + (1 - \beta_2) (U_L^\top G_t U_R)^2, \quad
        \Delta_t = U_L \, \frac{U_L^\top M_t U_R}{\sqrt{V_t}} \, U_R^\top

    where :math:`M_t` is the average of the gradients, and U holds the eigenvectors of L
    and R. The state is two moments per matrix, and two matrices of each rotated side
    (average and basis). Updates are as large as those of AdamW.

    Args:
        learning_rate: Learning rate, a number or a schedule; 3e-3 in the authors' code.
        b1: Decay rate of the momentum.
        b2: Decay rate of the second moment.
        b3: Decay rate of the averages of the Gram matrices.
        policy: ``"eigen"``, one power step from the last basis per renewal;
            ``"eigen_exact"``, an eigendecomposition; ``"identity"``, which is Adam.
        update_interval: The bases are renewed at steps 1, K, 2K, ...
        statistics: ``"gradient"``, or ``"kl"`` for the factors of `kl_soap`.
        side: ``"both"``, or one side only: ``"out"``, ``"in"``, ``"short"``.
        max_dim: Larger sides do not rotate, as in the authors' code; None for no bound.
        block_size: Largest side of the blocks that a matrix is cut into, each of which
            is rotated as a matrix of its own (`transforms.in_blocks`), as in
            Distributed Shampoo; None for whole matrices. Averages and bases of both
            sides have 2 (m/n + n/m) numbers per weight, 8.5 for 4096 x 16384, and 4 in
            square blocks. ``max_dim`` bounds the sides of blocks; ``side="short"`` is
            the shorter side of the whole matrix.
        bias_correction: Whether to correct both moments as Adam does.
        bounded: Whether no ratio exceeds Adam's largest (`scale_by_second_moment`).
        eps: Added to the root of the second moment, relative to its largest entry in
            the matrix. With 0, directions that hold only rounding noise get updates of
            full size; if gradients are nearly of low rank (as in physics-informed
            networks), try 1e-6.
        qr: Kernel that orthonormalizes columns, as in `rotate`.
        weight_decay: Decoupled weight decay of all but vectors, a number or a schedule.
        mu_dtype: Dtype of the momenta; None for that of the parameter.
        **common: Keywords of every recipe, see `optax_matrix.recipes`.

    Returns:
        An optimizer of the whole tree.

    Examples:
        >>> import jax, jax.numpy as jnp, optax_matrix as om
        >>> tx = om.soap(1.0, weight_decay=0.0)
        >>> params = {"kernel": jnp.diag(jnp.array([3.0, 5.0]))}
        >>> updates, _ = jax.jit(tx.update)(params, tx.init(params), params)
        >>> (-updates["kernel"]).round(3).tolist()
        [[1.0, 0.0], [0.0, 1.0]]

    References:
        Vyas et al., `SOAP <https://arxiv.org/abs/2409.11321>`_, 2024; its printed form
        is Structured Fisher (Alice), Algorithm 6: ``soap(b1=0.9, b2=0.9, b3=0.999,
        policy="eigen_exact", bias_correction=False, bounded=False)``, at any interval.
        The defaults are those of the authors' code. Deviations from that code: the
        statistics include a gradient before it is used and not after, so that the first
        step is an update, where the code has none; bases start at the identity and move
        by power steps, where the code decomposes once; columns, and the second moment
        with them, are not sorted by their Rayleigh quotients; there is no epsilon; rows
        of the rotated momentum that are rounding noise count as zero (`rotate`); ratios
        beyond Adam's largest are reduced (``bounded``); weight decay applies to the old
        weights, there to the new ones.
    """
    options = {
        "bias_correction": bias_correction,
        "bounded": bounded,
        "relative_eps": eps,
    }
    rotated = in_eigenbasis(
        scale_by_second_moment(b2, **options),
        policy=policy,
        side=lambda layout: sides_within(layout, side, max_dim, block_size),
        qr=qr,
        update_interval=update_interval,
        statistics=statistics,
        decay=b3,
        momentum=momentum(b1, bias_correction=bias_correction, dtype=mu_dtype),
    )
    chain = in_blocks(rotated, block_size)

    return Method(chain)


scale_by_soap = direction(soap)


@preset(
    soap, fixed={"statistics": "kl"}, b1=0.9, b2=0.98, b3=0.98, bias_correction=False
)
def kl_soap():
    r"""KL-SOAP for matrices, AdamW(0.9, 0.95) for the rest, at one learning rate.

    .. math::
        L_t = \beta_3 L_{t-1} + \tfrac{1 - \beta_3}{n} G_t R_{t-1}^{-1} G_t^\top, \quad
        R_t = \beta_3 R_{t-1} + \tfrac{1 - \beta_3}{m} G_t^\top L_{t-1}^{-1} G_t

    This is `soap` in the eigenbases of these factors, those of `kl_shampoo`. The state
    is that of `soap` and the eigenvalues of each side.

    Args:
        **options: Those of `soap`, without ``statistics``.

    Returns:
        An optimizer of the whole tree.

    Examples:
        >>> import jax, jax.numpy as jnp, optax_matrix as om
        >>> tx = om.kl_soap(1.0, b1=0.0, b2=0.0, weight_decay=0.0)
        >>> params = {"kernel": jnp.diag(jnp.array([3.0, 5.0]))}
        >>> updates, _ = jax.jit(tx.update)(params, tx.init(params), params)
        >>> (-updates["kernel"]).round(3).tolist()
        [[1.0, 0.0], [0.0, 1.0]]

    References:
        Lin et al., `KL-SOAP <https://arxiv.org/abs/2509.03378>`_, 2025. The defaults
        are those of the authors' code, which corrects no bias. Deviations: those of
        `soap` and, for the factors, `kl_shampoo`.
    """


scale_by_kl_soap = direction(kl_soap)
