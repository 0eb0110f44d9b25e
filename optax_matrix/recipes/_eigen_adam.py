"""Eigen-Adam: Adam in the left eigenbasis of the averaged gradient."""

from typing import Any

import optax
from jax.typing import ArrayLike, DTypeLike

from optax_matrix.arguments import check_choice, check_decay, check_dtype, check_flag
from optax_matrix.layout import on_matrices
from optax_matrix.linalg import cholesky_qr
from optax_matrix.recipes._optimizer import matrix_optimizer
from optax_matrix.recipes._orientation import ORIENTATIONS, sides
from optax_matrix.transforms import rotate, scale_by_second_moment


def scale_by_eigen_adam(
    *,
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.9,
    b3: ArrayLike = 0.999,
    policy: str = "eigen",
    update_interval: int = 10,
    orientation: str = "short",
    bias_correction: bool = False,
    qr: Any = cholesky_qr,
    dimension_numbers: Any = None,
    placement: Any = None,
    mu_dtype: DTypeLike | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Scales the gradients of matrices as Eigen-Adam does; leaves the others alone.

    .. math::
        Q_t = \beta_3 Q_{t-1} + (1 - \beta_3) G_t G_t^\top, \quad
        M_t = \beta_1 M_{t-1} + (1 - \beta_1) G_t, \quad
        V_t = \beta_2 V_{t-1} + (1 - \beta_2) (U_t^\top G_t)^2, \quad
        \Delta_t = U_t \, (U_t^\top M_t) / \sqrt{V_t}

    with U the eigenvectors of Q. It is one-sided SOAP and AdaDiag.

    Args:
        b1: Decay rate of the momentum.
        b2: Decay rate of the second moment.
        b3: Decay rate of the average of the Gram matrices.
        policy: ``"eigen"``, a power step of the last basis per renewal;
            ``"eigen_exact"``, an eigendecomposition; ``"identity"``, which is Adam.
        update_interval: The basis is renewed at step 1 and every so many; the paper has
            200 for exact eigenvectors.
        orientation: Which side rotates: ``"short"`` (the paper), ``"residual"``,
            ``"out"``, ``"in"``, as in `scale_by_aro`.
        bias_correction: Whether to correct both moments as Adam does, which the paper
            does not.
        qr: Kernel of orthonormal columns, as in `rotate`.
        dimension_numbers: Which leaves are matrices, as in `on_matrices`.
        placement: Where whole matrices live on a mesh, as in `on_matrices`.
        mu_dtype: Dtype of the momentum; None for the parameter's.

    Returns:
        A transformation for any tree; its state is two moments and two matrices of the
        rotated side (average and basis) per matrix, and step counts.

    Raises:
        ValueError: If an argument is out of range.

    Examples:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx = om.scale_by_eigen_adam(b1=0.0, b2=0.75)
        >>> params = {"kernel": jnp.diag(jnp.array([3.0, 5.0]))}
        >>> updates, _ = jax.jit(tx.update)(params, tx.init(params))
        >>> updates["kernel"].round(3).tolist()
        [[2.0, 0.0], [0.0, 2.0]]

    References:
        Structured Fisher (Alice), Eq. 13 and Algorithm 7. Deviations: the default
        renewal is a power step from the identity (``policy="eigen_exact",
        update_interval=200`` is the paper's), so that no eigendecomposition is
        compiled; no epsilon, as nothing is divided by zero; entries of the rotated
        momentum that are rounding noise count as zero (`rotate`). After a renewal the
        second moment stays as it was, in the old basis, as in the paper.
    """
    check_flag("bias_correction", bias_correction)
    check_decay("b1", b1)
    check_decay("b2", b2)
    check_decay("b3", b3)
    check_choice("policy", policy, ("eigen", "eigen_exact", "identity"))
    check_choice("orientation", orientation, ORIENTATIONS)
    if mu_dtype is not None:
        check_dtype("mu_dtype", mu_dtype)
    options = {"policy": policy, "qr": qr, "update_interval": update_interval}
    rotate(optax.identity(), **options)  # Checks its arguments, now.

    def build(layout, b1, b2, b3):
        return rotate(
            scale_by_second_moment(b2, bias_correction=bias_correction),
            side=sides(layout, orientation),
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


def eigen_adam(
    learning_rate: optax.ScalarOrSchedule,
    *,
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.9,
    b3: ArrayLike = 0.999,
    policy: str = "eigen",
    update_interval: int = 10,
    orientation: str = "short",
    bias_correction: bool = False,
    qr: Any = cholesky_qr,
    weight_decay: optax.ScalarOrSchedule = 0.0,
    weight_decay_mask: Any = None,
    dimension_numbers: Any = None,
    placement: Any = None,
    other: optax.GradientTransformation | None = None,
    other_learning_rate: optax.ScalarOrSchedule | None = None,
    mu_dtype: DTypeLike | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Eigen-Adam for matrices, AdamW(0.9, 0.95) for the rest, at one learning rate.

    `scale_by_eigen_adam`, then decoupled weight decay (none in the paper) and the
    learning rate. Momentum first, and with the second moment of the momentum, it is
    ``aro(base="adam", policy="eigen")``.

    Args:
        learning_rate: Learning rate, a number or a schedule.
        b1: Decay rate of the momentum.
        b2: Decay rate of the second moment.
        b3: Decay rate of the average of the Gram matrices.
        policy: ``"eigen"``, a power step of the last basis per renewal;
            ``"eigen_exact"``, an eigendecomposition; ``"identity"``, which is Adam.
        update_interval: The basis is renewed at step 1 and every so many; the paper has
            200 for exact eigenvectors.
        orientation: Which side rotates: ``"short"`` (the paper), ``"residual"``,
            ``"out"``, ``"in"``, as in `scale_by_aro`.
        bias_correction: Whether to correct both moments as Adam does, which the paper
            does not.
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
        >>> tx = om.eigen_adam(1e-3)
        >>> params = {"kernel": jnp.ones((4, 8)), "bias": jnp.zeros(8)}
        >>> updates, state = jax.jit(tx.update)(params, tx.init(params), params)
        >>> updates["kernel"].shape
        (4, 8)
    """
    matrix = scale_by_eigen_adam(
        b1=b1,
        b2=b2,
        b3=b3,
        policy=policy,
        update_interval=update_interval,
        orientation=orientation,
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
