"""AdaMuon: a second moment per element after the polar factor."""

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
from optax_matrix.linalg import newton_schulz
from optax_matrix.recipes._optimizer import Polar, check_polar, matrix_optimizer
from optax_matrix.transforms import (
    in_float32,
    match_rms,
    orthogonalize,
)


def scale_by_adamuon(
    variant: str = "sign",
    *,
    b1: ArrayLike = 0.95,
    b2: ArrayLike | None = None,
    nesterov: bool = True,
    eps: ArrayLike = 1e-8,
    polar: Polar = newton_schulz,
    dimension_numbers: Any = None,
    placement: Any = None,
    mu_dtype: DTypeLike | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Scales the gradients of matrices as AdaMuon does; leaves the others alone.

    .. math::
        O_t = \mathrm{polar}(f(\tilde{M}_t)), \quad
        V_t = \beta_2 V_{t-1} + (1 - \beta_2) O_t^2, \quad
        \Delta_t = 0.2 \sqrt{mn} \, \hat{O}_t / \|\hat{O}_t\|_F, \quad
        \hat{O}_t = O_t / (\sqrt{V_t} + \epsilon)

    element by element. Two algorithms were published under this name:

    * ``"sign"`` (the later): :math:`f` is the sign, :math:`\beta_2 = \beta_1`, and
      :math:`V_t` is used as it is;
    * ``"unsigned"`` (the first): :math:`f` is the identity, :math:`\beta_2 = 0.999`,
      and :math:`V_t` is divided by :math:`1 - \beta_2^t`.

    Args:
        variant: ``"sign"`` or ``"unsigned"``.
        b1: Decay rate of the momentum.
        b2: Decay rate of the second moment; None for the variant's.
        nesterov: Whether to look ahead by one step.
        eps: Added to the root of the second moment.
        polar: Kernel that returns the polar factor; five steps of Newton-Schulz.
        dimension_numbers: Which leaves are matrices, as in `on_matrices`.
        placement: Where whole matrices live on a mesh, as in `on_matrices`.
        mu_dtype: Dtype of the momentum; None for the parameter's.

    Returns:
        A transformation for any tree; its state is a momentum and a second moment per
        matrix, the latter at least float32.

    Raises:
        ValueError: If an argument is out of range.

    Examples:
        >>> import optax
        >>> import optax_matrix as om
        >>> tx = optax.chain(
        ...     optax.clip_by_global_norm(1.0),
        ...     om.scale_by_adamuon(),
        ...     optax.scale_by_learning_rate(3e-3),
        ... )

    References:
        Si et al., `AdaMuon <https://arxiv.org/abs/2507.11005>`_, 2025; both versions as
        their code has them. Deviation: Newton-Schulz in at least float32, as in
        `scale_by_muon`.
    """
    check_choice("variant", variant, ("sign", "unsigned"))
    if b2 is None:
        b2 = b1 if variant == "sign" else 0.999
    check_flag("nesterov", nesterov)
    check_decay("b1", b1)
    check_decay("b2", b2)
    check_not_negative("eps", eps)
    check_polar(polar)
    if mu_dtype is not None:
        check_dtype("mu_dtype", mu_dtype)
    signed = variant == "sign"

    def build(layout, b1, b2, eps):
        del layout
        second_moment = optax.scale_by_rms(
            b2, eps, eps_in_sqrt=False, bias_correction=not signed
        )
        return optax.chain(
            optax.trace(b1, nesterov, mu_dtype),
            *([optax.scale_by_sign()] if signed else []),
            orthogonalize(polar),
            in_float32(second_moment),
            match_rms(0.2),
        )

    return on_matrices(
        build,
        hyperparams={"b1": b1, "b2": b2, "eps": eps},
        dimension_numbers=dimension_numbers,
        placement=placement,
        probe=polar is not newton_schulz,
    )


def adamuon(
    learning_rate: optax.ScalarOrSchedule,
    *,
    variant: str = "sign",
    b1: ArrayLike = 0.95,
    b2: ArrayLike | None = None,
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
    """AdaMuon for matrices, AdamW for the rest, at one learning rate.

    `scale_by_adamuon`, then decoupled weight decay and the learning rate.

    Args:
        learning_rate: Learning rate, a number or a schedule.
        variant: ``"sign"`` (the later version) or ``"unsigned"`` (the first).
        b1: Decay rate of the momentum.
        b2: Decay rate of the second moment; None for the variant's.
        nesterov: Whether to look ahead by one step.
        eps: Added to the root of the second moment.
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
        >>> tx = om.adamuon(5e-3)
        >>> params = {"kernel": jnp.ones((4, 8)), "bias": jnp.zeros(8)}
        >>> updates, state = tx.update(params, tx.init(params), params)
        >>> updates["kernel"].shape
        (4, 8)
    """
    matrix = scale_by_adamuon(
        variant,
        b1=b1,
        b2=b2,
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
