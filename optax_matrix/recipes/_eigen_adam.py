"""Eigen-Adam: Adam in the eigenbasis of one side of the averaged gradient."""

from typing import Literal, Unpack

from optax_matrix._arguments import Decay, Dtype, Kernel, NotNegative, PositiveInt, Rate
from optax_matrix.matrices.oriented import oriented
from optax_matrix.recipes._method import Method
from optax_matrix.recipes._recipe import Common, direction, recipe
from optax_matrix.stacks.orientation import Orientation, oriented_sides
from optax_matrix.transforms import in_eigenbasis, momentum, scale_by_second_moment


@recipe
def eigen_adam(
    learning_rate: Rate,
    *,
    b1: Decay = 0.9,
    b2: Decay = 0.9,
    b3: Decay = 0.999,
    policy: Literal["eigen", "eigen_exact", "identity"] = "eigen",
    update_interval: PositiveInt = 10,
    orientation: Orientation = "short",
    bias_correction: bool = False,
    bounded: bool = True,
    eps: NotNegative = 0.0,
    qr: Kernel = "cholesky_qr",
    weight_decay: Rate = 0.0,
    mu_dtype: Dtype | None = None,
    **common: Unpack[Common],
) -> Method:
    r"""Eigen-Adam for matrices, AdamW(0.9, 0.95) for the rest, at one learning rate.

    .. math::
        Q_t = \beta_3 Q_{t-1} + (1 - \beta_3) G_t G_t^\top, \quad
        M_t = \beta_1 M_{t-1} + (1 - \beta_1) G_t, \quad
        V_t = \beta_2 V_{t-1} + (1 - \beta_2) (U_t^\top G_t)^2, \quad
        \Delta_t = U_t \, (U_t^\top M_t) / \sqrt{V_t}

    where U holds the eigenvectors of Q. It is one-sided SOAP, also known as AdaDiag.
    The state is two moments and two matrices of the rotated side (average and basis)
    per matrix. With the momentum taken first, and the second moment of the momentum, it
    would be ``aro(base="adam", policy="eigen")``.

    Args:
        learning_rate: Learning rate, a number or a schedule; the paper has none. The
            study starts at 4e-3.
        b1: Decay rate of the momentum.
        b2: Decay rate of the second moment.
        b3: Decay rate of the average of the Gram matrices.
        policy: ``"eigen"``, one power step from the last basis per renewal;
            ``"eigen_exact"``, an eigendecomposition; ``"identity"``, which is Adam.
        update_interval: The basis is renewed at steps 1, K, 2K, ...; the paper has
            200 for exact eigenvectors.
        orientation: Which side rotates: ``"short"`` (the paper), ``"residual"``,
            ``"out"``, ``"in"`` or another of `aro`.
        bias_correction: Whether to correct both moments as Adam does. The paper does
            not.
        bounded: Whether no ratio exceeds Adam's largest (`scale_by_second_moment`).
        eps: Added to the root of the second moment, relative to its largest entry in
            the matrix. Without it, directions with singular values far below the
            largest, which are rounding noise, move at full size. In float64 on a PINN
            1e-6 mends that.
        qr: Kernel that orthonormalizes columns, as in `rotate`.
        weight_decay: Decoupled weight decay of all but vectors; none in the paper.
        mu_dtype: Dtype of the momenta; None for that of the parameter.
        **common: Keywords of every recipe, see `optax_matrix.recipes`.

    Returns:
        An optimizer of the whole tree.

    Examples:
        >>> import jax, jax.numpy as jnp, optax_matrix as om
        >>> tx = om.eigen_adam(1.0, b1=0.0, b2=0.75)
        >>> params = {"kernel": jnp.diag(jnp.array([3.0, 5.0]))}
        >>> updates, _ = jax.jit(tx.update)(params, tx.init(params), params)
        >>> (-updates["kernel"]).round(3).tolist()
        [[2.0, 0.0], [0.0, 2.0]]

    References:
        `Structured Fisher <https://arxiv.org/abs/2502.07752>`_ (Alice), Eq. 13 and
        Algorithm 7. Deviations: the default renewal is a power step that starts from
        the identity (the paper is ``policy="eigen_exact", update_interval=200``), so
        that no eigendecomposition is compiled; there is no epsilon; rows of the rotated
        momentum that are rounding noise count as zero (`rotate`); ratios beyond Adam's
        largest are reduced (``bounded``). At a renewal the second moment stays in the
        old basis, as there.
    """
    options = {
        "bias_correction": bias_correction,
        "bounded": bounded,
        "relative_eps": eps,
    }
    chain = in_eigenbasis(
        scale_by_second_moment(b2, **options),
        policy=policy,
        side=lambda layout: oriented_sides(layout, orientation),
        qr=qr,
        update_interval=update_interval,
        decay=b3,
        momentum=momentum(b1, bias_correction=bias_correction, dtype=mu_dtype),
    )

    numbers = oriented(common.get("dimension_numbers"), orientation)
    return Method(chain, dimension_numbers=numbers)


scale_by_eigen_adam = direction(eigen_adam)
