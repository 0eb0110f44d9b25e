"""Dion: orthonormal factors of low rank, with error feedback."""

from typing import Any

import optax
from jax.typing import ArrayLike, DTypeLike

from optax_matrix.arguments import check_choice
from optax_matrix.layout import on_matrices
from optax_matrix.linalg import cholesky_qr
from optax_matrix.recipes._optimizer import matrix_optimizer
from optax_matrix.transforms import orthogonalize_low_rank, scale_by_shape
from optax_matrix.transforms.update_size import SHAPE_RULES


def scale_by_dion(
    *,
    rank: Any = 1.0,
    b1: ArrayLike = 0.95,
    scaling: str = "unclipped",
    qr: Any = cholesky_qr,
    dimension_numbers: Any = None,
    placement: Any = None,
    mu_dtype: DTypeLike | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Scales the gradients of matrices as Dion does; leaves the others alone.

    .. math::
        B = M_{t-1} + G_t, \quad P = \mathrm{qr}(B Q_{t-1}), \quad R = B^\top P, \quad
        M_t = B - (1 - \beta_1) P R^\top, \quad \Delta_t = c \, P Q_t^\top

    with :math:`Q_t` R with columns of norm one, and c the ``scaling``.

    Args:
        rank: Number of columns: an int, or a float for a fraction of the shorter side,
            rounded up. 1.0 is full rank.
        b1: Decay rate of the momentum.
        scaling: Rule of `scale_by_shape`: ``"unclipped"`` (the paper's
            :math:`\sqrt{m/n}`), ``"max"``, ``"out/in"``, ``"none"``.
        qr: Kernel of orthonormal columns, as in `rotate`.
        dimension_numbers: Which leaves are matrices, as in `on_matrices`.
        placement: Where whole matrices live on a mesh, as in `on_matrices`.
        mu_dtype: Dtype of the momentum; None for the parameter's.

    Returns:
        A transformation for any tree; its state is a momentum and a right factor, ``n *
        rank``, per matrix.

    Raises:
        ValueError: If an argument is out of range.

    Examples:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx = om.scale_by_dion(rank=1)
        >>> params = {"kernel": jnp.array([[3.0, 6.0], [4.0, 8.0]])}  # of rank one
        >>> updates, _ = jax.jit(tx.update)(params, tx.init(params))
        >>> updates["kernel"].round(3).tolist()
        [[0.268..., 0.537...], [0.358..., 0.716...]]


    References:
        Ahn et al., `Dion <https://arxiv.org/abs/2504.05295>`_, 2025, Algorithm 1.
        Deviations: as in `orthogonalize_low_rank`; where the authors have Lion for the
        other leaves, AdamW. Full rank it is close to ``aro(base="row_norm",
        policy="eigen", orientation="out")``, but its right factor is that of the last
        step.
    """
    check_choice("scaling", scaling, SHAPE_RULES)
    options = {"rank": rank, "qr": qr, "accumulator_dtype": mu_dtype}
    orthogonalize_low_rank(decay=b1, **options)  # Checks its arguments, now.

    def build(layout, b1):
        ids = {name: group.ids for name, group in layout.groups.items()}
        return optax.chain(
            orthogonalize_low_rank(decay=b1, ids=ids, **options),
            scale_by_shape(scaling),
        )

    return on_matrices(
        build,
        hyperparams={"b1": b1},
        dimension_numbers=dimension_numbers,
        placement=placement,
        probe=qr is not cholesky_qr,
    )


def dion(
    learning_rate: optax.ScalarOrSchedule,
    *,
    rank: Any = 1.0,
    b1: ArrayLike = 0.95,
    scaling: str = "unclipped",
    qr: Any = cholesky_qr,
    weight_decay: optax.ScalarOrSchedule = 0.01,
    weight_decay_mask: Any = None,
    dimension_numbers: Any = None,
    placement: Any = None,
    other: optax.GradientTransformation | None = None,
    other_learning_rate: optax.ScalarOrSchedule | None = None,
    mu_dtype: DTypeLike | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Dion for matrices, AdamW(0.9, 0.95) for the rest, at one learning rate.

    `scale_by_dion`, then decoupled weight decay and the learning rate.

    Args:
        learning_rate: Learning rate, a number or a schedule; 0.01 in the paper.
        rank: Number of columns: an int, or a float for a fraction of the shorter side,
            rounded up. 1.0 is full rank.
        b1: Decay rate of the momentum.
        scaling: Rule of `scale_by_shape`: ``"unclipped"`` (the paper's
            :math:`\sqrt{m/n}`), ``"max"``, ``"out/in"``, ``"none"``.
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
        >>> tx = om.dion(1e-3)
        >>> params = {"kernel": jnp.ones((4, 8)), "bias": jnp.zeros(8)}
        >>> updates, state = jax.jit(tx.update)(params, tx.init(params), params)
        >>> updates["kernel"].shape
        (4, 8)
    """
    matrix = scale_by_dion(
        rank=rank,
        b1=b1,
        scaling=scaling,
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
