"""Fira and Fira+: GaLore, plus the part of the gradient that its projection loses."""

from typing import Literal, Unpack

import optax

from optax_matrix._arguments import (
    AtLeastOne,
    Decay,
    Dtype,
    Kernel,
    NotNegative,
    Positive,
    PositiveInt,
    Rank,
    Rate,
    Seed,
)
from optax_matrix.recipes._low_rank import (
    LastLayer,
    SingularBasis,
    Transport,
    coordinate_adam,
    singular_basis,
    with_last_layer,
)
from optax_matrix.recipes._method import Method
from optax_matrix.recipes._recipe import Common, direction, preset, recipe
from optax_matrix.transforms import compensate, project_low_rank
from optax_matrix.transforms.sides import ProjectedSide


@recipe
def _fira(
    learning_rate: Rate,
    *,
    rank: Rank = 128,
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: NotNegative = 0.0,
    scale: Positive = 0.25,
    residual_scale: NotNegative = 1.0,
    compensation: Literal["fira", "fira_plus"] = "fira",
    limiter: AtLeastOne = 1.01,
    max_shrink: AtLeastOne | None = 2.0,
    update_interval: PositiveInt = 200,
    basis: SingularBasis = "randomized_svd",
    side: ProjectedSide = "short",
    transport: Transport = "keep",
    bias_correction: bool = True,
    stagger: bool = False,
    seed: Seed = 0,
    qr: Kernel = "cholesky_qr",
    last_layer: LastLayer = "other",
    weight_decay: Rate = 0.0,
    mu_dtype: Dtype | None = None,
    **common: Unpack[Common],
) -> Method:
    r"""Fira and Fira+, by ``compensation``."""
    plus = compensation == "fira_plus"

    residual = compensate(
        compensation,
        scale=residual_scale if plus else residual_scale / scale,
        limiter=limiter,
        max_shrink=max_shrink,
    )
    chain = project_low_rank(
        coordinate_adam(b1, b2, bias_correction, mu_dtype, eps),
        combine=optax.chain(residual, optax.scale(scale)),
        rank=rank,
        side=side,
        basis=singular_basis(basis, qr),
        update_interval=update_interval,
        phase=0,
        stagger=stagger,
        transport=transport,
        seed=seed,
    )

    numbers = with_last_layer(last_layer, common)
    return Method(chain, dimension_numbers=numbers, other_b2=0.999)


@preset(_fira, fixed={"compensation": "fira"})
def fira():
    r"""Fira for matrices, Adam(0.9, 0.999) for the rest, at one learning rate.

    .. math::
        \sigma_t = U^\top G_t, \qquad \omega_t = \mathrm{Adam}(\sigma_t), \qquad
        \Delta_t = \alpha \, U \omega_t + \alpha_c \, C_t, \qquad
        C_{t, \cdot i} = (G_t - U \sigma_t)_{\cdot i} \,
        \|\omega_{t, \cdot i}\| / \|\sigma_{t, \cdot i}\|

    where U holds the leading left singular vectors of a recent gradient, as in
    `galore`, and `limit_norm_growth` limits C. The state is ``2 n r + m r`` numbers per
    matrix with ``m <= n``, three more for the limiter and the bias correction.

    Args:
        learning_rate: Learning rate, a number or a schedule; 0.01 in the paper, 0.02
            (with a scale of 0.3) in that of Alice.
        rank: Number of vectors r, an int (clipped to the shorter side) or a float for a
            fraction of that; 128, 256, 256, 512 in the paper for 60M, 130M, 350M, 1B.
        b1: Decay rate of the momentum.
        b2: Decay rate of the second moment.
        eps: Added to its root (`scale_by_second_moment`); 1e-6 in the authors' code.
        scale: Factor :math:`\alpha` of the low-rank part; 0.0625 in the authors' code
            for 1B.
        residual_scale: Factor :math:`\alpha_c` of the residual; 0 is GaLore.
        limiter: Largest growth of the residual's norm per step.
        max_shrink: As in `limit_norm_growth`; None is the paper.
        update_interval: U is renewed at steps 1, K + 1, 2K + 1, ...
        basis: ``"randomized_svd"``, ``"svd"`` (paper) or a function, as in `galore`.
        side: Which side is projected, as in `project_low_rank`.
        transport: What happens to the moments at a renewal, as in `project_low_rank`.
        bias_correction: Whether to correct both moments, as Adam does.
        stagger: Whether stacks are renewed in turn, as in `project_low_rank`.
        seed: Seed of the random numbers.
        qr: Kernel that orthonormalizes columns, as in `rotate`.
        last_layer: ``"method"`` treats an output head, recognized by its name, as a
            matrix; ``"other"`` leaves it to Adam, as in the paper.
        weight_decay: Decoupled weight decay of all but vectors; none in the paper.
        mu_dtype: Dtype of the momenta; None for float32.
        **common: Keywords of every recipe, see `optax_matrix.recipes`.

    Returns:
        An optimizer of the whole tree.

    Examples:
        >>> import jax, jax.numpy as jnp, optax_matrix as om
        >>> tx = om.fira(1.0, rank=1, scale=1.0)
        >>> params = {"kernel": jnp.diag(jnp.array([3.0, 5.0]))}
        >>> updates, _ = jax.jit(tx.update)(params, tx.init(params), params)
        >>> abs(updates["kernel"].round(3)).tolist()
        [[0.0, 0.0], [0.0, 1.0]]

    References:
        Chen et al., `Fira <https://arxiv.org/abs/2410.01623>`_, 2024, Algorithm 1.
        Deviations: those of `galore` and `compensate`; the moments are corrected for
        their bias before the norms are taken. The authors' code applies the correction
        to the step size instead, so that its limiter sees the norms without it.
    """


@preset(
    _fira,
    fixed={"compensation": "fira_plus", "limiter": 1.01, "max_shrink": None},
    rank=256,
    scale=0.3,
    residual_scale=0.4,
)
def fira_plus():
    r"""Fira+ for matrices, Adam(0.9, 0.999) for the rest, at one learning rate.

    .. math::
        \Delta_t = \alpha \, (U \omega_t + \alpha_c \, C_t \,
        \|U \omega_t\|_F / \|C_t\|_F)

    with U, :math:`\omega` and C as in `fira`, which this is with other defaults. There
    is no limiter, as it would have no effect. The paper's ranks are 128, 256, 256, 512,
    its :math:`\alpha` 0.3, 0.3, 0.3, 0.25 and its :math:`\alpha_c` 0.4, 0.4, 0.4, 0.2
    for 60M, 130M, 350M, 1.3B parameters, its learning rate 0.02.
    The state is that of `fira` without the limiter's number.

    Args:
        **options: Those of `fira`, without ``limiter`` and ``max_shrink``.

    Returns:
        An optimizer of the whole tree.

    Examples:
        >>> import jax, jax.numpy as jnp, optax_matrix as om
        >>> tx = om.fira_plus(1.0, rank=1, scale=1.0)
        >>> params = {"kernel": jnp.diag(jnp.array([3.0, 5.0]))}
        >>> updates, _ = jax.jit(tx.update)(params, tx.init(params), params)
        >>> abs(updates["kernel"].round(3)).tolist()
        [[0.0, 0.0], [0.0, 1.0]]

    References:
        `Structured Fisher <https://arxiv.org/abs/2502.07752>`_ (Alice), Section F.7.
        Deviations: there it is a part of Alice, as in
        ``alice(compensation="fira_plus")``, here of GaLore; those of `galore` and
        `compensate`.
    """


scale_by_fira = direction(fira)
scale_by_fira_plus = direction(fira_plus)
