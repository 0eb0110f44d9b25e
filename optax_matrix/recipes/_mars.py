"""MARS-AdamW: AdamW on a variance-reduced gradient."""

from typing import Any

import optax
from jax.typing import ArrayLike, DTypeLike

from optax_matrix.arguments import (
    check_decay,
    check_dtype,
    check_not_negative,
    check_positive,
)
from optax_matrix.layout import on_matrices
from optax_matrix.recipes._optimizer import matrix_optimizer
from optax_matrix.transforms import correct_variance, in_float32


def scale_by_mars_adamw(
    gamma: ArrayLike = 0.025,
    *,
    b1: ArrayLike = 0.95,
    b2: ArrayLike = 0.99,
    eps: ArrayLike = 1e-8,
    max_norm: ArrayLike | None = 1.0,
    dimension_numbers: Any = None,
    placement: Any = None,
    mu_dtype: DTypeLike | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Scales the gradients of matrices as MARS-AdamW does; leaves the others alone.

    .. math::
        c_t = G_t + \gamma \frac{\beta_1}{1 - \beta_1} (G_t - G_{t-1}), \qquad
        \Delta_t = \mathrm{Adam}(c_t / \max(1, \|c_t\|_F))

    Args:
        gamma: Strength of the correction.
        b1: Decay rate of the first moment.
        b2: Decay rate of the second moment.
        eps: Added to the root of the second moment.
        max_norm: Largest Frobenius norm of a corrected gradient; None for no clipping.
        dimension_numbers: Which leaves are matrices, as in `on_matrices`.
        placement: Where whole matrices live on a mesh, as in `on_matrices`.
        mu_dtype: Dtype of the first moment (None: at least float32) and of the stored
            gradient (None: the parameter's).

    Returns:
        A transformation for any tree; its state is two moments and the last gradient.

    Raises:
        ValueError: If an argument is out of range.

    Examples:
        >>> import optax
        >>> import optax_matrix as om
        >>> tx = optax.chain(
        ...     optax.clip_by_global_norm(1.0),
        ...     om.scale_by_mars_adamw(),
        ...     optax.scale_by_learning_rate(3e-3),
        ... )

    References:
        Yuan et al., `MARS <https://arxiv.org/abs/2411.10438>`_, 2024, as in the
        authors' code. Deviation: the norm is clipped per matrix, where theirs clips a
        whole parameter; the two differ for stacked layers.
    """
    check_not_negative("gamma", gamma)
    check_decay("b1", b1)
    check_decay("b2", b2)
    check_not_negative("eps", eps)
    if max_norm is not None:
        check_positive("max_norm", max_norm)
    if mu_dtype is not None:
        check_dtype("mu_dtype", mu_dtype)

    def build(layout, gamma, b1, b2, eps, max_norm):
        del layout
        adam = optax.scale_by_adam(b1, b2, eps, mu_dtype=mu_dtype)
        return optax.chain(
            correct_variance(gamma, b1, max_norm, accumulator_dtype=mu_dtype),
            in_float32(adam),
        )

    return on_matrices(
        build,
        hyperparams={
            "gamma": gamma,
            "b1": b1,
            "b2": b2,
            "eps": eps,
            "max_norm": max_norm,
        },
        dimension_numbers=dimension_numbers,
        placement=placement,
        probe=False,
    )


def mars_adamw(
    learning_rate: optax.ScalarOrSchedule,
    *,
    gamma: ArrayLike = 0.025,
    b1: ArrayLike = 0.95,
    b2: ArrayLike = 0.99,
    eps: ArrayLike = 1e-8,
    max_norm: ArrayLike | None = 1.0,
    weight_decay: optax.ScalarOrSchedule = 0.1,
    weight_decay_mask: Any = None,
    dimension_numbers: Any = None,
    placement: Any = None,
    other: optax.GradientTransformation | None = None,
    other_learning_rate: optax.ScalarOrSchedule | None = None,
    mu_dtype: DTypeLike | None = None,
) -> optax.GradientTransformationExtraArgs:
    """MARS-AdamW for matrices, AdamW(0.9, 0.95) for the rest.

    `scale_by_mars_adamw`, then decoupled weight decay and the learning rate. The
    defaults are those of the authors' class but for the weight decay, which there is 0
    for matrices and 0.1 for 1-D leaves; 0.1 is MuonEq's, whose paper compares with
    ``b1=0.9, b2=0.95``. The authors correct embeddings and the head, too, which
    ``dimension_numbers=om.layout.by_path(include="embed|head")`` does here.

    Args:
        learning_rate: Learning rate, a number or a schedule; 3e-3 is the default of
            the authors' class and MuonEq's value for 130M parameters.
        gamma: Strength of the correction.
        b1: Decay rate of the first moment.
        b2: Decay rate of the second moment.
        eps: Added to the root of the second moment.
        max_norm: Largest Frobenius norm of a corrected gradient; None for no clipping.
        weight_decay: Decoupled weight decay of both sides, a number or a schedule.
        weight_decay_mask: Tree, prefix tree or callable, as in `optax.adamw`.
        dimension_numbers: Which leaves are matrices, as in `on_matrices`.
        placement: Where whole matrices live on a mesh, as in `on_matrices`.
        other: Optimizer of all other leaves; None for AdamW(0.9, 0.95).
        other_learning_rate: Learning rate of that AdamW; None for ``learning_rate``.
        mu_dtype: Dtype of the first moments and of the stored gradient; None for the
            parameter's, but at least float32 for the first moment of a matrix.

    Returns:
        An optimizer of the whole tree.

    Raises:
        ValueError: If an argument is out of range.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx = om.mars_adamw(3e-3)
        >>> params = {"kernel": jnp.ones((4, 8)), "bias": jnp.zeros(8)}
        >>> updates, state = tx.update(params, tx.init(params), params)
        >>> updates["kernel"].shape
        (4, 8)
    """
    matrix = scale_by_mars_adamw(
        gamma,
        b1=b1,
        b2=b2,
        eps=eps,
        max_norm=max_norm,
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
