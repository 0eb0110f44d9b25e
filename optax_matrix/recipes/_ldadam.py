"""LDAdam: Adam in a subspace that moves at every step, with error feedback."""

from typing import Any

import optax
from jax.typing import ArrayLike, DTypeLike

from optax_matrix.layout import on_matrices
from optax_matrix.linalg import cholesky_qr
from optax_matrix.recipes._low_rank import with_last_layer
from optax_matrix.recipes._optimizer import matrix_optimizer
from optax_matrix.transforms import scale_by_tracked_adam


def scale_by_ldadam(
    *,
    rank: Any = 16,
    b1: ArrayLike = 0.908,
    b2: ArrayLike = 0.99,
    rho: ArrayLike = 0.908,
    error_feedback: bool = True,
    start: str = "randomized",
    side: str = "short",
    seed: int = 0,
    qr: Any = cholesky_qr,
    last_layer: str = "other",
    dimension_numbers: Any = None,
    placement: Any = None,
    mu_dtype: DTypeLike | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Scales the gradients of matrices as LDAdam does; leaves the others alone.

    .. math::
        A_t = G_t + E_t, \qquad P_t = \mathrm{qr}(B_t B_t^\top P_{t-1}), \qquad
        \Delta_t = P_t \, \mathrm{Adam}(P_t^\top A_t)

    with B a mean of the momentum and :math:`A_t`, moments that are moved along with the
    basis P, and E what the projections left out: `transforms.scale_by_tracked_adam`.

    Args:
        rank: Number of vectors r, an int (clipped to the shorter side) or a float for a
            fraction of that; 16 in the authors' code.
        b1: Decay rate of the momentum.
        b2: Decay rate of the second moment.
        rho: Weight of the momentum, beside the gradient, in what the basis follows.
        error_feedback: Whether what the subspace left out is added to the next
            gradient.
        start: ``"randomized"`` or ``"exact"`` (an SVD, the paper's) for the first
            basis.
        side: Which side is projected, as in `project_low_rank`.
        seed: Of the random numbers.
        qr: Kernel of orthonormal columns, as in `rotate`.
        last_layer: ``"method"`` for an output head (by its name) among the matrices;
            ``"other"`` for Adam's.
        dimension_numbers: Which leaves are matrices, as in `on_matrices`.
        placement: Where whole matrices live on a mesh, as in `on_matrices`.
        mu_dtype: Dtype of the momentum and the error; None for float32.

    Returns:
        A transformation for any tree; its state is ``m n + 2 n r + m r`` numbers per
        matrix with ``m <= n``, without error feedback ``2 n r + m r``, and a step
        count. (The authors keep E in the gradient's buffer; here a gradient is not
        state.)

    Raises:
        ValueError: If an argument is out of range.

    Examples:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx = om.scale_by_ldadam(rank=1)
        >>> params = {"kernel": jnp.diag(jnp.array([3.0, 5.0]))}
        >>> updates, _ = jax.jit(tx.update)(params, tx.init(params))
        >>> abs(updates["kernel"].round(3)).tolist()
        [[0.0, 0.0], [0.0, 1.0]]

    References:
        Robert et al., `LDAdam <https://arxiv.org/abs/2410.16103>`_, 2024; as in the
        authors' code. Deviations: those of `transforms.scale_by_tracked_adam`.
    """
    options = {
        "rank": rank,
        "side": side,
        "error_feedback": error_feedback,
        "start": start,
        "seed": seed,
        "qr": qr,
        "mu_dtype": mu_dtype,
    }
    scale_by_tracked_adam(b1, b2, rho=rho, **options)  # Checks its arguments, now.

    def build(layout, b1, b2, rho):
        ids = {name: group.ids for name, group in layout.groups.items()}
        return scale_by_tracked_adam(b1, b2, rho=rho, ids=ids, **options)

    return on_matrices(
        build,
        hyperparams={"b1": b1, "b2": b2, "rho": rho},
        dimension_numbers=with_last_layer(last_layer, dimension_numbers),
        placement=placement,
        probe=qr is not cholesky_qr,
    )


def ldadam(
    learning_rate: optax.ScalarOrSchedule,
    *,
    rank: Any = 16,
    b1: ArrayLike = 0.908,
    b2: ArrayLike = 0.99,
    rho: ArrayLike = 0.908,
    error_feedback: bool = True,
    start: str = "randomized",
    side: str = "short",
    seed: int = 0,
    qr: Any = cholesky_qr,
    last_layer: str = "other",
    weight_decay: optax.ScalarOrSchedule = 0.0,
    weight_decay_mask: Any = None,
    dimension_numbers: Any = None,
    placement: Any = None,
    other: optax.GradientTransformation | None = None,
    other_learning_rate: optax.ScalarOrSchedule | None = None,
    mu_dtype: DTypeLike | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""LDAdam for matrices, Adam(0.9, 0.99) for the rest, at one learning rate.

    `scale_by_ldadam`, then decoupled weight decay (none by default) and the learning
    rate.

    Args:
        learning_rate: Learning rate, a number or a schedule; 0.001 is the default of
            the authors' code.
        rank: Number of vectors r, an int (clipped to the shorter side) or a float for a
            fraction of that; 16 in the authors' code.
        b1: Decay rate of the momentum.
        b2: Decay rate of the second moment.
        rho: Weight of the momentum, beside the gradient, in what the basis follows.
        error_feedback: Whether what the subspace left out is added to the next
            gradient.
        start: ``"randomized"`` or ``"exact"`` (an SVD, the paper's) for the first
            basis.
        side: Which side is projected, as in `project_low_rank`.
        seed: Of the random numbers.
        qr: Kernel of orthonormal columns, as in `rotate`.
        last_layer: ``"method"`` for an output head (by its name) among the matrices;
            ``"other"`` for Adam's.
        weight_decay: Decoupled weight decay of both sides, a number or a schedule.
        weight_decay_mask: Tree, prefix tree or callable, as in `optax.adamw`.
        dimension_numbers: Which leaves are matrices, as in `on_matrices`.
        placement: Where whole matrices live on a mesh, as in `on_matrices`.
        other: Optimizer of all other leaves; None for Adam(0.9, 0.99), (0.908, 0.99) in
            the authors' code.
        other_learning_rate: Learning rate of that Adam; None for ``learning_rate``, as
            in the authors' code.
        mu_dtype: Dtype of the momentum and the error; None for float32.

    Returns:
        An optimizer of the whole tree.

    Raises:
        ValueError: If an argument is out of range.

    Examples:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx = om.ldadam(1e-2, rank=2)
        >>> params = {"kernel": jnp.ones((4, 8)), "bias": jnp.zeros(8)}
        >>> updates, state = jax.jit(tx.update)(params, tx.init(params), params)
        >>> updates["kernel"].shape
        (4, 8)
    """
    matrix = scale_by_ldadam(
        rank=rank,
        b1=b1,
        b2=b2,
        rho=rho,
        error_feedback=error_feedback,
        start=start,
        side=side,
        seed=seed,
        qr=qr,
        last_layer=last_layer,
        dimension_numbers=dimension_numbers,
        placement=placement,
        mu_dtype=mu_dtype,
    )
    return matrix_optimizer(
        matrix,
        learning_rate,
        weight_decay=weight_decay,
        weight_decay_mask=weight_decay_mask,
        dimension_numbers=with_last_layer(last_layer, dimension_numbers),
        other=other,
        other_learning_rate=other_learning_rate,
        other_b2=0.99,
        mu_dtype=mu_dtype,
    )
