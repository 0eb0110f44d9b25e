"""NorMuon: a second moment per output neuron after the polar factor."""

from typing import Any

import optax
from jax.typing import ArrayLike, DTypeLike

from optax_matrix.arguments import check_choice, check_decay, check_dtype, check_flag
from optax_matrix.layout import on_matrices
from optax_matrix.linalg import newton_schulz
from optax_matrix.recipes._optimizer import Polar, check_polar, matrix_optimizer
from optax_matrix.transforms import (
    equilibrate_with_ema,
    match_rms,
    orthogonalize,
    preserve_norm,
    row_rms,
    scale_by_shape,
)


def scale_by_normuon(
    b1: ArrayLike = 0.95,
    *,
    b2: ArrayLike = 0.95,
    nesterov: bool = True,
    polar: Polar = newton_schulz,
    scaling: str = "rms",
    dimension_numbers: Any = None,
    placement: Any = None,
    mu_dtype: DTypeLike | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Scales the gradients of matrices as NorMuon does; leaves the others alone.

    .. math::
        O_t = \mathrm{polar}(\tilde{M}_t), \quad
        v_t = \beta_2 v_{t-1} + (1 - \beta_2) \, \mathrm{mean}_j O_{t,ij}^2, \quad
        \hat{O}_t = \mathrm{diag}(v_t)^{-1/2} O_t

    one number per row, that is per output neuron; then the matrix is brought to a size.

    Args:
        b1: Decay rate of the momentum.
        b2: Decay rate of the rows' second moment.
        nesterov: Whether to look ahead by one step.
        polar: Kernel that returns the polar factor; five steps of Newton-Schulz.
        scaling: ``"rms"``, to a root mean square of 0.2 (the paper), or ``"out/in"``,
            to the norm of :math:`O_t` times Keller Jordan's factor (the authors' code).
        dimension_numbers: Which leaves are matrices, as in `on_matrices`.
        placement: Where whole matrices live on a mesh, as in `on_matrices`.
        mu_dtype: Dtype of the momentum; None for the parameter's.

    Returns:
        A transformation for any tree; its state is a momentum and ``m`` numbers per
        matrix.

    Raises:
        ValueError: If an argument is out of range.

    Examples:
        >>> import optax
        >>> import optax_matrix as om
        >>> tx = optax.chain(
        ...     optax.clip_by_global_norm(1.0),
        ...     om.scale_by_normuon(),
        ...     optax.scale_by_learning_rate(3e-3),
        ... )

    References:
        Li et al., `NorMuon <https://arxiv.org/abs/2510.05491>`_, 2025. Deviations:
        Nesterov as in the authors' code (the paper has plain momentum); rows of zeros
        stay zero, in place of an epsilon; a polar factor that is all zero leaves
        :math:`v` alone; Newton-Schulz in at least float32, as in `scale_by_muon`.
    """
    check_flag("nesterov", nesterov)
    check_decay("b1", b1)
    check_decay("b2", b2)
    check_polar(polar)
    check_choice("scaling", scaling, ("rms", "out/in"))
    if mu_dtype is not None:
        check_dtype("mu_dtype", mu_dtype)

    def build(layout, b1, b2):
        del layout
        per_row = equilibrate_with_ema(row_rms, b2)
        if scaling == "rms":
            sized = [per_row, match_rms(0.2)]
        else:
            sized = [preserve_norm(per_row), scale_by_shape(scaling)]
        return optax.chain(
            optax.trace(b1, nesterov, mu_dtype), orthogonalize(polar), *sized
        )

    return on_matrices(
        build,
        hyperparams={"b1": b1, "b2": b2},
        dimension_numbers=dimension_numbers,
        placement=placement,
        probe=polar is not newton_schulz,
    )


def normuon(
    learning_rate: optax.ScalarOrSchedule,
    *,
    b1: ArrayLike = 0.95,
    b2: ArrayLike = 0.95,
    nesterov: bool = True,
    polar: Polar = newton_schulz,
    scaling: str = "rms",
    weight_decay: optax.ScalarOrSchedule = 0.1,
    weight_decay_mask: Any = None,
    dimension_numbers: Any = None,
    placement: Any = None,
    other: optax.GradientTransformation | None = None,
    other_learning_rate: optax.ScalarOrSchedule | None = None,
    mu_dtype: DTypeLike | None = None,
) -> optax.GradientTransformationExtraArgs:
    """NorMuon for matrices, AdamW for the rest, at one learning rate.

    `scale_by_normuon`, then decoupled weight decay and the learning rate.

    Args:
        learning_rate: Learning rate, a number or a schedule.
        b1: Decay rate of the momentum.
        b2: Decay rate of the rows' second moment.
        nesterov: Whether to look ahead by one step.
        polar: Kernel that returns the polar factor; five steps of Newton-Schulz.
        scaling: ``"rms"`` (the paper) or ``"out/in"`` (the authors' code).
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
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx = om.normuon(3e-3)
        >>> params = {"kernel": jnp.ones((4, 8)), "bias": jnp.zeros(8)}
        >>> updates, state = tx.update(params, tx.init(params), params)
        >>> updates["kernel"].shape
        (4, 8)
    """
    matrix = scale_by_normuon(
        b1,
        b2=b2,
        nesterov=nesterov,
        polar=polar,
        scaling=scaling,
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
