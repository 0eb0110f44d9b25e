"""Shampoo: fourth roots of the summed Gram matrices on both sides."""

from typing import Any

import optax
from jax.typing import ArrayLike, DTypeLike

from optax_matrix.arguments import check_choice, check_decay, check_dtype, check_flag
from optax_matrix.layout import on_matrices
from optax_matrix.recipes._optimizer import matrix_optimizer
from optax_matrix.transforms import precondition
from optax_matrix.transforms.sides import MATRIX_SIDES as SIDES


def scale_by_shampoo(
    *,
    b1: ArrayLike | None = None,
    b2: ArrayLike | None = None,
    bias_correction: bool = False,
    root: int = 4,
    side: str = "both",
    eps: ArrayLike = 1e-6,
    method: str = "newton",
    update_interval: int = 1,
    dimension_numbers: Any = None,
    placement: Any = None,
    mu_dtype: DTypeLike | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Scales the gradients of matrices as Shampoo does; leaves the others alone.

    .. math::
        L_t = L_{t-1} + G_t G_t^\top, \quad
        R_t = R_{t-1} + G_t^\top G_t, \qquad
        \Delta_t = L_t^{-1/4} G_t R_t^{-1/4}

    Args:
        b1: Decay rate of a momentum of the gradients in the place of :math:`G_t`; None
            for none, which is the paper.
        b2: Decay rate of averages in place of the sums; None for sums.
        bias_correction: Whether averages are divided by :math:`1 - b_2^t`.
        root: The root; 2 with one side only is whitening.
        side: ``"both"``, or one side only: ``"out"``, ``"in"``, ``"short"``.
        eps: What is added to the diagonals, relative to the largest eigenvalue.
        method: ``"newton"`` (products only) or ``"eigh"``, of `linalg.inverse_root`.
        update_interval: The roots are renewed at step 1 and every so many.
        dimension_numbers: Which leaves are matrices, as in `on_matrices`.
        placement: Where whole matrices live on a mesh, as in `on_matrices`.
        mu_dtype: Dtype of the momentum; None for the parameter's.

    Returns:
        A transformation for any tree; its state is a matrix of each side per matrix,
        twice if ``update_interval`` is above 1, and a momentum if there is one.

    Raises:
        ValueError: If an argument is out of range.

    Examples:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx = om.scale_by_shampoo(eps=0.0)
        >>> params = {"kernel": jnp.diag(jnp.array([3.0, 5.0]))}
        >>> updates, _ = jax.jit(tx.update)(params, tx.init(params))
        >>> updates["kernel"].round(3).tolist()
        [[1.0, 0.0], [0.0, 1.0]]


    References:
        Gupta et al., `Shampoo <https://arxiv.org/abs/1802.09568>`_, 2018, Algorithm 1;
        Structured Fisher (Alice), Algorithm 5, whose sign in the exponent is a
        misprint. Deviations: epsilon is relative and added when a root is taken, where
        the paper starts the sums with it; roots by coupled Newton iterations, so that
        no eigendecomposition is compiled. Sums remember an unclipped gradient of 1e20
        for good: chain `optax.clip_by_global_norm` in front.
    """
    if b1 is not None:
        check_decay("b1", b1)
    if b2 is not None:
        check_decay("b2", b2)
    check_flag("bias_correction", bias_correction)
    check_choice("side", side, SIDES)
    if mu_dtype is not None:
        check_dtype("mu_dtype", mu_dtype)
    options = {
        "root": root,
        "side": side,
        "bias_correction": bias_correction,
        "method": method,
        "update_interval": update_interval,
    }
    precondition(decay=b2, eps=eps, **options)  # Checks its arguments, now.

    def build(layout, b1, b2, eps):
        del layout
        momentum = None if b1 is None else optax.ema(b1, False, mu_dtype)
        return precondition(decay=b2, eps=eps, momentum=momentum, **options)

    return on_matrices(
        build,
        hyperparams={"b1": b1, "b2": b2, "eps": eps},
        dimension_numbers=dimension_numbers,
        placement=placement,
        probe=False,
    )


def shampoo(
    learning_rate: optax.ScalarOrSchedule,
    *,
    b1: ArrayLike | None = None,
    b2: ArrayLike | None = None,
    bias_correction: bool = False,
    root: int = 4,
    side: str = "both",
    eps: ArrayLike = 1e-6,
    method: str = "newton",
    update_interval: int = 1,
    weight_decay: optax.ScalarOrSchedule = 0.0,
    weight_decay_mask: Any = None,
    dimension_numbers: Any = None,
    placement: Any = None,
    other: optax.GradientTransformation | None = None,
    other_learning_rate: optax.ScalarOrSchedule | None = None,
    mu_dtype: DTypeLike | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Shampoo for matrices, AdamW(0.9, 0.95) for the rest.

    `scale_by_shampoo`, then decoupled weight decay and the learning rate. With sums the
    updates shrink like :math:`1 / \sqrt{t}`; to run at AdamW's learning rate, chain
    `scale_by_shampoo` with `match_rms`.

    Args:
        learning_rate: Learning rate, a number or a schedule.
        b1: Decay rate of a momentum of the gradients in the place of :math:`G_t`; None
            for none, which is the paper.
        b2: Decay rate of averages in place of the sums; None for sums.
        bias_correction: Whether averages are divided by :math:`1 - b_2^t`.
        root: The root; 2 with one side only is whitening.
        side: ``"both"``, or one side only: ``"out"``, ``"in"``, ``"short"``.
        eps: What is added to the diagonals, relative to the largest eigenvalue.
        method: ``"newton"`` (products only) or ``"eigh"``, of `linalg.inverse_root`.
        update_interval: The roots are renewed at step 1 and every so many.
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
        >>> tx = om.shampoo(1e-3)
        >>> params = {"kernel": jnp.ones((4, 8)), "bias": jnp.zeros(8)}
        >>> updates, state = jax.jit(tx.update)(params, tx.init(params), params)
        >>> updates["kernel"].shape
        (4, 8)
    """
    matrix = scale_by_shampoo(
        b1=b1,
        b2=b2,
        bias_correction=bias_correction,
        root=root,
        side=side,
        eps=eps,
        method=method,
        update_interval=update_interval,
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
