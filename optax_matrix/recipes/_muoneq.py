"""MuonEq: equilibrate the momentum before the polar factor is taken."""

from functools import partial
from typing import Any

import optax
from jax.typing import ArrayLike, DTypeLike

from optax_matrix.arguments import (
    check_choice,
    check_decay,
    check_dtype,
    check_flag,
    check_not_negative,
)
from optax_matrix.layout import on_matrices
from optax_matrix.linalg import (
    newton_schulz,
    scale_columns,
    scale_rows,
    scale_rows_and_columns,
)
from optax_matrix.recipes._optimizer import Polar, check_polar, matrix_optimizer
from optax_matrix.transforms import equilibrate, orthogonalize, scale_by_shape

_KERNELS = {"row": scale_rows, "col": scale_columns, "rowcol": scale_rows_and_columns}


def scale_by_muoneq(
    mode: str | None = "row",
    *,
    b1: ArrayLike = 0.95,
    nesterov: bool = True,
    eps: ArrayLike = 1e-8,
    polar: Polar = newton_schulz,
    dimension_numbers: Any = None,
    placement: Any = None,
    mu_dtype: DTypeLike | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Scales the gradients of matrices as MuonEq does; leaves the others alone.

    .. math::
        B_t = \beta B_{t-1} + G_t, \quad \tilde{M}_t = G_t + \beta B_t, \quad
        \Delta_t = 0.2 \sqrt{\max(m, n)} \,
            \mathrm{polar}(D_r^{-1/2} \tilde{M}_t D_c^{-1/2})

    where :math:`D_r` and :math:`D_c` hold the squared norms of the rows and of the
    columns of :math:`\tilde{M}_t`; ``mode`` says which of the two take part.

    Args:
        mode: ``"row"`` scales output neurons, ``"col"`` inputs, ``"rowcol"`` both, from
            the same matrix; None is Muon.
        b1: Decay rate :math:`\beta` of the momentum.
        nesterov: Whether to look ahead by one step.
        eps: Floor of a squared norm, relative to the mean of the matrix.
        polar: Kernel that returns the polar factor; five steps of Newton-Schulz.
        dimension_numbers: Which leaves are matrices, as in `on_matrices`.
        placement: Where whole matrices live on a mesh, as in `on_matrices`.
        mu_dtype: Dtype of the momentum; None for the parameter's.

    Returns:
        A transformation for any tree; its state is one momentum per matrix.

    Raises:
        ValueError: If an argument is out of range.

    Examples:
        >>> import optax
        >>> import optax_matrix as om
        >>> tx = optax.chain(
        ...     optax.clip_by_global_norm(1.0),
        ...     om.scale_by_muoneq("row"),
        ...     optax.scale_by_learning_rate(3e-3),
        ... )

    References:
        MuonEq, Algorithm 1. Deviations: ``eps`` acts relative to the matrix, so that
        the update does not change with the scale of the loss; the momentum is a sum
        and not an average, a factor that nothing after it sees; one ``b1`` serves both
        places of the Nesterov line, which differ only if it changes between steps;
        Newton-Schulz in at least float32, as in `scale_by_muon`.
    """
    check_choice("mode", mode, (*_KERNELS, None))
    check_flag("nesterov", nesterov)
    check_decay("b1", b1)
    check_not_negative("eps", eps)
    check_polar(polar)
    if mu_dtype is not None:
        check_dtype("mu_dtype", mu_dtype)

    def build(layout, b1, eps):
        del layout
        kernels = [] if mode is None else [partial(_KERNELS[mode], eps=eps)]
        return optax.chain(
            optax.trace(b1, nesterov, mu_dtype),
            *(equilibrate(kernel) for kernel in kernels),
            orthogonalize(polar),
            scale_by_shape("max"),
        )

    return on_matrices(
        build,
        hyperparams={"b1": b1, "eps": eps},
        dimension_numbers=dimension_numbers,
        placement=placement,
        probe=polar is not newton_schulz,
    )


def muoneq(
    learning_rate: optax.ScalarOrSchedule,
    *,
    mode: str | None = "row",
    b1: ArrayLike = 0.95,
    nesterov: bool = True,
    eps: ArrayLike = 1e-8,
    polar: Polar = newton_schulz,
    weight_decay: optax.ScalarOrSchedule = 0.1,
    weight_decay_mask: Any = None,
    dimension_numbers: Any = None,
    placement: Any = None,
    other: optax.GradientTransformation | None = None,
    other_learning_rate: optax.ScalarOrSchedule | None = None,
    mu_dtype: DTypeLike | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""MuonEq for matrices, AdamW for the rest, at one learning rate.

    `scale_by_muoneq`, then decoupled weight decay and the learning rate.

    Args:
        learning_rate: Learning rate, a number or a schedule; in the paper 3e-3 for
            130M and 2e-3 for 350M parameters.
        mode: ``"row"`` scales output neurons, ``"col"`` inputs, ``"rowcol"`` both; None
            is Muon with Moonlight's scaling.
        b1: Decay rate of the momentum.
        nesterov: Whether to look ahead by one step.
        eps: Floor of a squared norm, relative to the mean of the matrix.
        polar: Kernel that returns the polar factor.
        weight_decay: Decoupled weight decay of both sides, a number or a schedule.
        weight_decay_mask: Tree, prefix tree or callable, as in `optax.adamw`.
        dimension_numbers: Which leaves are matrices, as in `on_matrices`; by default
            embeddings and the head are not, as in the authors' code.
        placement: Where whole matrices live on a mesh, as in `on_matrices`.
        other: Optimizer of all other leaves; None for AdamW(0.9, 0.95).
        other_learning_rate: Learning rate of that AdamW; None for ``learning_rate``.
        mu_dtype: Dtype of the momenta; None for the parameter's.

    Returns:
        An optimizer of the whole tree.

    Raises:
        ValueError: If an argument is out of range.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx = om.muoneq(3e-3)
        >>> params = {"kernel": jnp.ones((4, 8)), "bias": jnp.zeros(8)}
        >>> updates, state = tx.update(params, tx.init(params), params)
        >>> updates["kernel"].shape
        (4, 8)
    """
    matrix = scale_by_muoneq(
        mode,
        b1=b1,
        nesterov=nesterov,
        eps=eps,
        polar=polar,
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
