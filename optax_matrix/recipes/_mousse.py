"""Mousse: Muon in whitened coordinates."""

from typing import Any

import optax
from jax.typing import ArrayLike, DTypeLike

from optax_matrix.arguments import check_choice, check_decay, check_dtype
from optax_matrix.layout import on_matrices
from optax_matrix.linalg import newton_schulz
from optax_matrix.recipes._optimizer import Polar, check_polar, matrix_optimizer
from optax_matrix.transforms import orthogonalize, precondition, scale_by_shape
from optax_matrix.transforms.sides import MATRIX_SIDES as SIDES
from optax_matrix.transforms.update_size import SHAPE_RULES


def scale_by_mousse(
    *,
    b1: ArrayLike = 0.95,
    b2: ArrayLike = 0.95,
    root: int = 8,
    side: str = "both",
    polar: Polar = newton_schulz,
    scaling: str = "max",
    eps: ArrayLike = 1e-6,
    method: str = "newton",
    update_interval: int = 10,
    dimension_numbers: Any = None,
    placement: Any = None,
    mu_dtype: DTypeLike | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Scales the gradients of matrices as Mousse does; leaves the others alone.

    .. math::
        M_t = \beta_1 M_{t-1} + G_t, \quad
        O_t = \mathrm{polar}(L^{-1/8} M_t R^{-1/8}), \quad
        \Delta_t = c \, \frac{\|O_t\|}{\|D_t\|} D_t, \quad
        D_t = L^{-1/8} O_t R^{-1/8}

    with L and R the averages of :math:`G G^\top` and :math:`G^\top G`, and c the
    ``scaling``.

    Args:
        b1: Decay rate of the momentum.
        b2: Decay rate of the averages of the Gram matrices.
        root: The root; 8 is the power 0.125 of the paper.
        side: ``"both"``, or one side only: ``"out"``, ``"in"``, ``"short"``.
        polar: Kernel that returns the polar factor; five steps of Newton-Schulz.
        scaling: Rule of `scale_by_shape`: ``"max"``, ``"out/in"``, ``"unclipped"`` or
            ``"none"``.
        eps: What is added to the diagonals, relative to the largest eigenvalue.
        method: ``"newton"`` (products only) or ``"eigh"``, of `linalg.inverse_root`.
        update_interval: The roots are renewed at step 1 and every so many.
        dimension_numbers: Which leaves are matrices, as in `on_matrices`.
        placement: Where whole matrices live on a mesh, as in `on_matrices`.
        mu_dtype: Dtype of the momentum; None for the parameter's.

    Returns:
        A transformation for any tree; its state is a momentum, and two matrices of each
        side (average and root), per matrix, and a step count.

    Raises:
        ValueError: If an argument is out of range.

    Examples:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx = om.scale_by_mousse(polar=om.linalg.polar_svd, scaling="none")
        >>> params = {"kernel": jnp.diag(jnp.array([3.0, 3.0]))}
        >>> updates, _ = jax.jit(tx.update)(params, tx.init(params))
        >>> updates["kernel"].round(3).tolist()
        [[1.0, 0.0], [0.0, 1.0]]


    References:
        Zhang et al., `Mousse <https://arxiv.org/abs/2603.09697>`_, 2026, and its
        authors' code. Deviations: neither the correction of the averages nor their
        trace is divided out, as the grafting undoes every factor; epsilon is relative
        to the largest eigenvalue and 1e-6, where the code has 1e-10 of the mean, which
        is beyond float32; roots by coupled Newton iterations, so that no
        eigendecomposition is compiled; ``scaling="max"`` is Moonlight's, for AdamW's
        learning rate.
    """
    check_decay("b1", b1)
    check_decay("b2", b2)
    check_polar(polar)
    check_choice("scaling", scaling, SHAPE_RULES)
    check_choice("side", side, SIDES)
    if mu_dtype is not None:
        check_dtype("mu_dtype", mu_dtype)
    options = {
        "root": root,
        "side": side,
        "method": method,
        "update_interval": update_interval,
    }
    precondition(eps=eps, **options)  # Checks its arguments, now.

    def build(layout, b1, b2, eps):
        del layout
        whitened = precondition(
            orthogonalize(polar),
            decay=b2,
            eps=eps,
            momentum=optax.trace(b1, accumulator_dtype=mu_dtype),
            graft=True,
            **options,
        )
        return optax.chain(whitened, scale_by_shape(scaling))

    return on_matrices(
        build,
        hyperparams={"b1": b1, "b2": b2, "eps": eps},
        dimension_numbers=dimension_numbers,
        placement=placement,
        probe=polar is not newton_schulz,
    )


def mousse(
    learning_rate: optax.ScalarOrSchedule,
    *,
    b1: ArrayLike = 0.95,
    b2: ArrayLike = 0.95,
    root: int = 8,
    side: str = "both",
    polar: Polar = newton_schulz,
    scaling: str = "max",
    eps: ArrayLike = 1e-6,
    method: str = "newton",
    update_interval: int = 10,
    weight_decay: optax.ScalarOrSchedule = 0.1,
    weight_decay_mask: Any = None,
    dimension_numbers: Any = None,
    placement: Any = None,
    other: optax.GradientTransformation | None = None,
    other_learning_rate: optax.ScalarOrSchedule | None = None,
    mu_dtype: DTypeLike | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Mousse for matrices, AdamW(0.9, 0.95) for the rest, at one learning rate.

    `scale_by_mousse`, then decoupled weight decay and the learning rate: with
    ``scaling="max"`` AdamW's serves, as the updates have the size of AdamW's.

    Args:
        learning_rate: Learning rate, a number or a schedule.
        b1: Decay rate of the momentum.
        b2: Decay rate of the averages of the Gram matrices.
        root: The root; 8 is the power 0.125 of the paper.
        side: ``"both"``, or one side only: ``"out"``, ``"in"``, ``"short"``.
        polar: Kernel that returns the polar factor; five steps of Newton-Schulz.
        scaling: Rule of `scale_by_shape`: ``"max"``, ``"out/in"``, ``"unclipped"`` or
            ``"none"``.
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
        >>> tx = om.mousse(1e-3)
        >>> params = {"kernel": jnp.ones((4, 8)), "bias": jnp.zeros(8)}
        >>> updates, state = jax.jit(tx.update)(params, tx.init(params), params)
        >>> updates["kernel"].shape
        (4, 8)
    """
    matrix = scale_by_mousse(
        b1=b1,
        b2=b2,
        root=root,
        side=side,
        polar=polar,
        scaling=scaling,
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
