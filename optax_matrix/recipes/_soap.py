"""SOAP: Adam in the two-sided eigenbasis of the averaged gradient."""

from typing import Any

import optax
from jax.typing import ArrayLike, DTypeLike

from optax_matrix.arguments import (
    check_choice,
    check_decay,
    check_dtype,
    check_flag,
    check_positive_int,
)
from optax_matrix.layout import on_matrices
from optax_matrix.linalg import cholesky_qr
from optax_matrix.recipes._optimizer import matrix_optimizer
from optax_matrix.recipes._orientation import sides_within
from optax_matrix.transforms import rotate, scale_by_second_moment
from optax_matrix.transforms.sides import MATRIX_SIDES as SIDES


def scale_by_soap(
    *,
    b1: ArrayLike = 0.95,
    b2: ArrayLike = 0.95,
    b3: ArrayLike = 0.95,
    policy: str = "eigen",
    update_interval: int = 10,
    side: str = "both",
    max_dim: int | None = 10_000,
    bias_correction: bool = True,
    qr: Any = cholesky_qr,
    dimension_numbers: Any = None,
    placement: Any = None,
    mu_dtype: DTypeLike | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Scales the gradients of matrices as SOAP does; leaves the others alone.

    .. math::
        L_t = \beta_3 L_{t-1} + (1 - \beta_3) G_t G_t^\top, \quad
        R_t = \beta_3 R_{t-1} + (1 - \beta_3) G_t^\top G_t, \\
        V_t = \beta_2 V_{t-1} + (1 - \beta_2) (U_L^\top G_t U_R)^2, \quad
        \Delta_t = U_L \, \frac{U_L^\top M_t U_R}{\sqrt{V_t}} \, U_R^\top

    with :math:`M_t` the average of the gradients and U the eigenvectors of L and R.

    Args:
        b1: Decay rate of the momentum.
        b2: Decay rate of the second moment.
        b3: Decay rate of the averages of the Gram matrices.
        policy: ``"eigen"``, a power step of the last basis per renewal;
            ``"eigen_exact"``, an eigendecomposition; ``"identity"``, which is Adam.
        update_interval: The bases are renewed at step 1 and every so many.
        side: ``"both"``, or one side only: ``"out"``, ``"in"``, ``"short"``.
        max_dim: Sides above it do not rotate, as in the authors' code; None for all.
        bias_correction: Whether to correct both moments as Adam does.
        qr: Kernel of orthonormal columns, as in `rotate`.
        dimension_numbers: Which leaves are matrices, as in `on_matrices`.
        placement: Where whole matrices live on a mesh, as in `on_matrices`.
        mu_dtype: Dtype of the momentum; None for the parameter's.

    Returns:
        A transformation for any tree; its state is two moments, and for each rotated
        side two matrices of it (average and basis), per matrix, and step counts.

    Raises:
        ValueError: If an argument is out of range.

    Examples:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx = om.scale_by_soap()
        >>> params = {"kernel": jnp.diag(jnp.array([3.0, 5.0]))}
        >>> updates, _ = jax.jit(tx.update)(params, tx.init(params))
        >>> updates["kernel"].round(3).tolist()
        [[1.0, 0.0], [0.0, 1.0]]


    References:
        Vyas et al., `SOAP <https://arxiv.org/abs/2409.11321>`_, 2024; its printed form
        is Structured Fisher (Alice), Algorithm 6: ``scale_by_soap(b1=0.9, b2=0.9,
        b3=0.999, policy="eigen_exact", bias_correction=False)``, at any interval. The
        defaults are those of the authors' code. Deviations from that: the statistics
        take in a gradient before it is used and not after, so that the first step is an
        update, where the code has none; bases start at the identity and move by power
        steps, where the code decomposes once; columns, and the second moment with them,
        are not sorted by their Rayleigh quotients; no epsilon; entries of the rotated
        momentum that are rounding noise count as zero (`rotate`).
    """
    check_flag("bias_correction", bias_correction)
    check_decay("b1", b1)
    check_decay("b2", b2)
    check_decay("b3", b3)
    check_choice("policy", policy, ("eigen", "eigen_exact", "identity"))
    check_choice("side", side, SIDES)
    if max_dim is not None:
        check_positive_int("max_dim", max_dim)
    if mu_dtype is not None:
        check_dtype("mu_dtype", mu_dtype)
    options = {"policy": policy, "qr": qr, "update_interval": update_interval}
    rotate(optax.identity(), **options)  # Checks its arguments, now.

    def build(layout, b1, b2, b3):
        return rotate(
            scale_by_second_moment(b2, bias_correction=bias_correction),
            side=sides_within(layout, side, max_dim),
            statistics="gradient",
            decay=b3,
            momentum=optax.ema(b1, bias_correction, mu_dtype),
            **options,
        )

    return on_matrices(
        build,
        hyperparams={"b1": b1, "b2": b2, "b3": b3},
        dimension_numbers=dimension_numbers,
        placement=placement,
        probe=qr is not cholesky_qr,
    )


def soap(
    learning_rate: optax.ScalarOrSchedule,
    *,
    b1: ArrayLike = 0.95,
    b2: ArrayLike = 0.95,
    b3: ArrayLike = 0.95,
    policy: str = "eigen",
    update_interval: int = 10,
    side: str = "both",
    max_dim: int | None = 10_000,
    bias_correction: bool = True,
    qr: Any = cholesky_qr,
    weight_decay: optax.ScalarOrSchedule = 0.01,
    weight_decay_mask: Any = None,
    dimension_numbers: Any = None,
    placement: Any = None,
    other: optax.GradientTransformation | None = None,
    other_learning_rate: optax.ScalarOrSchedule | None = None,
    mu_dtype: DTypeLike | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""SOAP for matrices, AdamW(0.9, 0.95) for the rest, at one learning rate.

    `scale_by_soap`, then decoupled weight decay and the learning rate: AdamW's serves,
    as the updates have the size of AdamW's.

    Args:
        learning_rate: Learning rate, a number or a schedule.
        b1: Decay rate of the momentum.
        b2: Decay rate of the second moment.
        b3: Decay rate of the averages of the Gram matrices.
        policy: ``"eigen"``, a power step of the last basis per renewal;
            ``"eigen_exact"``, an eigendecomposition; ``"identity"``, which is Adam.
        update_interval: The bases are renewed at step 1 and every so many.
        side: ``"both"``, or one side only: ``"out"``, ``"in"``, ``"short"``.
        max_dim: Sides above it do not rotate, as in the authors' code; None for all.
        bias_correction: Whether to correct both moments as Adam does.
        qr: Kernel of orthonormal columns, as in `rotate`.
        weight_decay: Decoupled weight decay of both sides, a number or a schedule.
        weight_decay_mask: Tree, prefix tree or callable, as in `optax.adamw`.
        dimension_numbers: Which leaves are matrices, as in `on_matrices`.
        placement: Where whole matrices live on a mesh, as in `on_matrices`.
        other: Optimizer of all other leaves; None for AdamW(0.9, 0.95).
        other_learning_rate: Learning rate of that AdamW; None for ``learning_rate``.
        mu_dtype: Dtype of the momenta; None for the parameter's.

    Returns:
        An optimizer of the whole tree.

    Raises:
        ValueError: If an argument is out of range.

    Examples:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx = om.soap(1e-3)
        >>> params = {"kernel": jnp.ones((4, 8)), "bias": jnp.zeros(8)}
        >>> updates, state = jax.jit(tx.update)(params, tx.init(params), params)
        >>> updates["kernel"].shape
        (4, 8)
    """
    matrix = scale_by_soap(
        b1=b1,
        b2=b2,
        b3=b3,
        policy=policy,
        update_interval=update_interval,
        side=side,
        max_dim=max_dim,
        bias_correction=bias_correction,
        qr=qr,
        dimension_numbers=dimension_numbers,
        placement=placement,
        mu_dtype=mu_dtype,
    )
    return matrix_optimizer(
        matrix,
        learning_rate,
        weight_decay=weight_decay,
        weight_decay_mask=weight_decay_mask,
        dimension_numbers=dimension_numbers,
        other=other,
        other_learning_rate=other_learning_rate,
        mu_dtype=mu_dtype,
    )
