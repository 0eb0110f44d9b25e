"""Eigen-Sign: signs in the eigenbasis of the momentum."""

from typing import Any

import optax
from jax.typing import ArrayLike, DTypeLike

from optax_matrix.linalg import cholesky_qr
from optax_matrix.recipes._aro import scale_by_aro
from optax_matrix.recipes._optimizer import matrix_optimizer
from optax_matrix.recipes._orientation import check_eigen_policy


def scale_by_eigen_sign(
    *,
    b1: ArrayLike = 0.95,
    policy: str = "eigen",
    orientation: str = "residual",
    qr: Any = cholesky_qr,
    update_interval: int = 1,
    target: ArrayLike = 0.2,
    dimension_numbers: Any = None,
    placement: Any = None,
    mu_dtype: DTypeLike | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Scales the gradients of matrices as Eigen-Sign does; leaves the others alone.

    .. math::
        M_t = \beta_1 M_{t-1} + G_t, \quad
        R_t = \mathrm{qr}(M_t M_t^\top R_{t-1}), \quad
        D_t = R_t f(R_t^\top M_t), \quad
        \Delta_t = 0.2 \sqrt{mn} \, D_t / \|D_t\|_F

    with f the sign of every entry. It is `scale_by_aro` with the base
    ``"sign"`` and a rotation that follows from the momentum alone.

    Args:
        b1: Decay rate of the momentum.
        policy: ``"eigen"``, a power step of the last basis per renewal, or
            ``"eigen_exact"``, an eigendecomposition.
        orientation: Which side rotates: ``"residual"``, ``"short"``, ``"out"``,
            ``"in"``, as in `scale_by_aro`.
        qr: Kernel of orthonormal columns, as in `rotate`.
        update_interval: The basis is renewed every so many steps.
        target: Root mean square of the update; 0.2 is the usual size of Adam's.
        dimension_numbers: Which leaves are matrices, as in `on_matrices`.
        placement: Where whole matrices live on a mesh, as in `on_matrices`.
        mu_dtype: Dtype of the momentum; None for the parameter's.

    Returns:
        A transformation for any tree; its state is a momentum and a rotation per
        matrix.

    Raises:
        ValueError: If an argument is out of range.

    Examples:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx = om.scale_by_eigen_sign(target=1.0)
        >>> params = {"kernel": jnp.diag(jnp.array([3.0, 5.0]))}
        >>> updates, _ = jax.jit(tx.update)(params, tx.init(params))
        >>> abs(updates["kernel"]).round(3).tolist()
        [[1.414..., 0.0], [0.0, 1.414...]]

    References:
        ARO, Section 5.2, where it is the control group of ARO. Deviations: as in
        `scale_by_aro`.
    """
    check_eigen_policy(policy)
    return scale_by_aro(
        "sign",
        b1=b1,
        policy=policy,
        orientation=orientation,
        qr=qr,
        update_interval=update_interval,
        target=target,
        dimension_numbers=dimension_numbers,
        placement=placement,
        mu_dtype=mu_dtype,
    )


def eigen_sign(
    learning_rate: optax.ScalarOrSchedule,
    *,
    b1: ArrayLike = 0.95,
    policy: str = "eigen",
    orientation: str = "residual",
    qr: Any = cholesky_qr,
    update_interval: int = 1,
    target: ArrayLike = 0.2,
    weight_decay: optax.ScalarOrSchedule = 0.1,
    weight_decay_mask: Any = None,
    dimension_numbers: Any = None,
    placement: Any = None,
    other: optax.GradientTransformation | None = None,
    other_learning_rate: optax.ScalarOrSchedule | None = None,
    mu_dtype: DTypeLike | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Eigen-Sign for matrices, AdamW(0.9, 0.95) for the rest, at one learning rate.

    `scale_by_eigen_sign`, then decoupled weight decay and the learning rate.

    Args:
        learning_rate: Learning rate, a number or a schedule; AdamW's serves.
        b1: Decay rate of the momentum.
        policy: ``"eigen"``, a power step of the last basis per renewal, or
            ``"eigen_exact"``, an eigendecomposition.
        orientation: Which side rotates: ``"residual"``, ``"short"``, ``"out"``,
            ``"in"``, as in `scale_by_aro`.
        qr: Kernel of orthonormal columns, as in `rotate`.
        update_interval: The basis is renewed every so many steps.
        target: Root mean square of the update; 0.2 is the usual size of Adam's.
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
        >>> tx = om.eigen_sign(3e-4)
        >>> params = {"kernel": jnp.ones((4, 8)), "bias": jnp.zeros(8)}
        >>> updates, state = jax.jit(tx.update)(params, tx.init(params), params)
        >>> updates["kernel"].shape
        (4, 8)
    """
    matrix = scale_by_eigen_sign(
        b1=b1,
        policy=policy,
        orientation=orientation,
        qr=qr,
        update_interval=update_interval,
        target=target,
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
