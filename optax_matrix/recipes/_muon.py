"""Muon: momentum, then the polar factor."""

from typing import Any

import optax
from jax.typing import ArrayLike, DTypeLike

from optax_matrix.arguments import check_choice, check_decay, check_dtype, check_flag
from optax_matrix.layout import on_matrices
from optax_matrix.linalg import newton_schulz
from optax_matrix.recipes._optimizer import (
    Polar,
    check_polar,
    matrix_optimizer,
    scaled_learning_rate,
)
from optax_matrix.transforms import orthogonalize, scale_by_shape
from optax_matrix.transforms.update_size import SHAPE_RULES

_OTHER_RATE = 0.015  # Keller Jordan's 3e-4 for AdamW beside 0.02 for Muon.


def scale_by_muon(
    b1: ArrayLike = 0.95,
    *,
    nesterov: bool = True,
    polar: Polar = newton_schulz,
    scaling: str = "out/in",
    dimension_numbers: Any = None,
    placement: Any = None,
    mu_dtype: DTypeLike | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Scales the gradients of matrices as Muon does; leaves the others alone.

    .. math::
        B_t = \beta B_{t-1} + G_t, \qquad
        \Delta_t = c \, \mathrm{polar}(G_t + \beta B_t)

    with :math:`\beta` ``b1``, :math:`c` the ``scaling``, and :math:`B_t` in place of
    the sum if ``nesterov`` is off.

    Args:
        b1: Decay rate of the momentum.
        nesterov: Whether to look ahead by one step.
        polar: Kernel that returns the polar factor; five steps of Newton-Schulz.
        scaling: Rule of `scale_by_shape`: ``"out/in"`` (Keller Jordan), ``"max"``
            (Moonlight), ``"unclipped"`` or ``"none"``.
        dimension_numbers: Which leaves are matrices, as in `on_matrices`.
        placement: Where whole matrices live on a mesh, as in `on_matrices`.
        mu_dtype: Dtype of the momentum; None for the parameter's.

    Returns:
        A transformation for any tree; its state is one momentum per matrix.

    Raises:
        ValueError: If an argument is out of range.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx = om.scale_by_muon(polar=om.linalg.polar_svd)
        >>> params = {"kernel": jnp.diag(jnp.array([3.0, 5.0]))}
        >>> updates, _ = tx.update(params, tx.init(params))
        >>> updates["kernel"].round(3).tolist()
        [[1.0, 0.0], [0.0, 1.0]]

    References:
        Jordan et al., `Muon <https://kellerjordan.github.io/posts/muon/>`_, 2024.
        Liu et al., `Muon is scalable for LLM training
        <https://arxiv.org/abs/2502.16982>`_, 2025. (The momentum is a sum, as in
        Moonlight's code; the average of Jordan's differs by a factor that the polar
        factor does not see.) Deviation: Newton-Schulz runs in the parameters'
        precision, at least float32, where the authors run bfloat16 on accelerators;
        ``polar=partial(newton_schulz, compute_dtype=jnp.bfloat16)`` does.
    """
    check_flag("nesterov", nesterov)
    check_decay("b1", b1)
    check_polar(polar)
    check_choice("scaling", scaling, SHAPE_RULES)
    if mu_dtype is not None:
        check_dtype("mu_dtype", mu_dtype)

    def build(layout, b1):
        del layout
        return optax.chain(
            optax.trace(b1, nesterov, mu_dtype),
            orthogonalize(polar),
            scale_by_shape(scaling),
        )

    return on_matrices(
        build,
        hyperparams={"b1": b1},
        dimension_numbers=dimension_numbers,
        placement=placement,
        probe=polar is not newton_schulz,
    )


def muon(
    learning_rate: optax.ScalarOrSchedule,
    *,
    b1: ArrayLike = 0.95,
    nesterov: bool = True,
    polar: Polar = newton_schulz,
    scaling: str = "out/in",
    weight_decay: optax.ScalarOrSchedule | None = None,
    weight_decay_mask: Any = None,
    dimension_numbers: Any = None,
    placement: Any = None,
    other: optax.GradientTransformation | None = None,
    other_learning_rate: optax.ScalarOrSchedule | None = None,
    mu_dtype: DTypeLike | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Muon for matrices, AdamW for the rest.

    `scale_by_muon`, then decoupled weight decay and the learning rate. With
    ``scaling="max"`` it is Moonlight's Muon, whose updates have the size of AdamW's,
    so that both sides share one learning rate; with ``"out/in"`` it is Keller
    Jordan's, whose larger one (0.02) has AdamW's 3e-4 beside it.

    Args:
        learning_rate: Learning rate of the matrices, a number or a schedule.
        b1: Decay rate of the momentum.
        nesterov: Whether to look ahead by one step.
        polar: Kernel that returns the polar factor.
        scaling: Rule of `scale_by_shape`: ``"out/in"``, ``"max"``, ``"unclipped"`` or
            ``"none"``.
        weight_decay: Decoupled weight decay of both sides, a number or a schedule;
            None for what goes with the scaling: 0.1 for ``"max"``, else 0.
        weight_decay_mask: Tree, prefix tree or callable, as in `optax.adamw`.
        dimension_numbers: Which leaves are matrices, as in `on_matrices`.
        placement: Where whole matrices live on a mesh, as in `on_matrices`.
        other: Optimizer of all other leaves; None for AdamW(0.9, 0.95).
        other_learning_rate: Learning rate of that AdamW; None for what goes with the
            scaling: ``learning_rate`` for ``"max"``, else 0.015 of it, which is Keller
            Jordan's 3e-4 beside 0.02; a schedule keeps its shape.
        mu_dtype: Dtype of the momenta; None for the parameter's.

    Returns:
        An optimizer of the whole tree.

    Raises:
        ValueError: If an argument is out of range.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx = om.muon(3e-3, scaling="max")
        >>> params = {"kernel": jnp.ones((4, 8)), "bias": jnp.zeros(8)}
        >>> updates, state = tx.update(params, tx.init(params), params)
        >>> updates["kernel"].shape
        (4, 8)
    """
    matrix = scale_by_muon(
        b1,
        nesterov=nesterov,
        polar=polar,
        scaling=scaling,
        dimension_numbers=dimension_numbers,
        placement=placement,
        mu_dtype=mu_dtype,
    )
    is_moonlight = scaling == "max"
    if weight_decay is None:
        weight_decay = 0.1 if is_moonlight else 0.0
    if other_learning_rate is None and not is_moonlight:
        other_learning_rate = scaled_learning_rate(learning_rate, _OTHER_RATE)
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
