"""Muon+: rows and columns normalised after the polar factor."""

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
from optax_matrix.linalg import newton_schulz, scale_columns, scale_rows
from optax_matrix.recipes._optimizer import Polar, check_polar, matrix_optimizer
from optax_matrix.transforms import equilibrate, orthogonalize, scale_by_shape

_KERNELS = {
    "row": (scale_rows,),
    "col": (scale_columns,),
    "colrow": (scale_columns, scale_rows),
    "rowcol": (scale_rows, scale_columns),
}


def scale_by_muon_plus(
    mode: str = "colrow",
    *,
    b1: ArrayLike = 0.95,
    nesterov: bool = True,
    eps: ArrayLike = 1e-8,
    polar: Polar = newton_schulz,
    dimension_numbers: Any = None,
    placement: Any = None,
    mu_dtype: DTypeLike | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Scales the gradients of matrices as Muon+ does; leaves the others alone.

    .. math::
        \Delta_t = \sqrt{m/n} \; \mathrm{normalise}(\mathrm{polar}(\tilde{M}_t))

    where columns and rows are brought to norm one, one after the other. With
    ``"colrow"`` every row (output neuron) ends with norm :math:`\sqrt{m/n}`.

    Args:
        mode: ``"row"``, ``"col"``, ``"colrow"`` (columns first) or ``"rowcol"``.
        b1: Decay rate of the momentum.
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
        ...     om.scale_by_muon_plus(),
        ...     optax.scale_by_learning_rate(3e-3),
        ... )

    References:
        Zhang et al., `Muon+ <https://arxiv.org/abs/2602.21545>`_, 2026. The authors'
        code defaults to no normalisation; ``"colrow"`` is what MuonEq compares with.
        Nesterov is on as in the authors' code, off in MuonEq's copy. Deviations:
        ``eps`` is relative; Newton-Schulz in at least float32, as in `scale_by_muon`.
    """
    check_choice("mode", mode, _KERNELS)
    check_flag("nesterov", nesterov)
    check_decay("b1", b1)
    check_not_negative("eps", eps)
    check_polar(polar)
    if mu_dtype is not None:
        check_dtype("mu_dtype", mu_dtype)

    def build(layout, b1, eps):
        del layout
        kernels = [partial(kernel, eps=eps) for kernel in _KERNELS[mode]]
        return optax.chain(
            optax.trace(b1, nesterov, mu_dtype),
            orthogonalize(polar),
            *(equilibrate(kernel) for kernel in kernels),
            scale_by_shape("unclipped"),
        )

    return on_matrices(
        build,
        hyperparams={"b1": b1, "eps": eps},
        dimension_numbers=dimension_numbers,
        placement=placement,
        probe=polar is not newton_schulz,
    )


def muon_plus(
    learning_rate: optax.ScalarOrSchedule,
    *,
    mode: str = "colrow",
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
    """Muon+ for matrices, AdamW for the rest.

    `scale_by_muon_plus`, then decoupled weight decay and the learning rate.

    Args:
        learning_rate: Learning rate, a number or a schedule; 5e-3 in MuonEq's paper.
        mode: ``"row"``, ``"col"``, ``"colrow"`` (columns first) or ``"rowcol"``.
        b1: Decay rate of the momentum.
        nesterov: Whether to look ahead by one step.
        eps: Floor of a squared norm, relative to the mean of the matrix.
        polar: Kernel that returns the polar factor; five steps of Newton-Schulz.
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
        >>> tx = om.muon_plus(5e-3)
        >>> params = {"kernel": jnp.ones((4, 8)), "bias": jnp.zeros(8)}
        >>> updates, state = tx.update(params, tx.init(params), params)
        >>> updates["kernel"].shape
        (4, 8)
    """
    matrix = scale_by_muon_plus(
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
