"""SWAN: the gradient itself, rows standardised, then whitened; no state."""

from functools import partial
from typing import Any

import optax
from jax.typing import ArrayLike, DTypeLike

from optax_matrix.arguments import check_not_negative
from optax_matrix.layout import on_matrices
from optax_matrix.linalg import newton_schulz, standardize_rows
from optax_matrix.recipes._optimizer import Polar, check_polar, matrix_optimizer
from optax_matrix.transforms import equilibrate, orthogonalize, scale_by_shape


def scale_by_swan(
    *,
    eps: ArrayLike = 1e-8,
    polar: Polar = newton_schulz,
    dimension_numbers: Any = None,
    placement: Any = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Scales the gradients of matrices as SWAN does; leaves the others alone.

    .. math::
        \tilde{G}_i = (G_i - \bar{G}_i) / \mathrm{std}(G_i), \qquad
        \Delta = 0.2 \sqrt{\max(m, n)} \, (\tilde{G} \tilde{G}^\top)^{-1/2} \tilde{G}

    row by row, then whitened, which is the polar factor.

    Args:
        eps: Floor of a row's variance, relative to the mean square of the matrix.
        polar: Kernel that returns the polar factor; five steps of Newton-Schulz.
        dimension_numbers: Which leaves are matrices, as in `on_matrices`.
        placement: Where whole matrices live on a mesh, as in `on_matrices`.

    Returns:
        A stateless transformation for any tree.

    Raises:
        ValueError: If an argument is out of range.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx = om.scale_by_swan()
        >>> params = {"kernel": jnp.ones((4, 8))}
        >>> updates, _ = tx.update(params, tx.init(params))
        >>> float(abs(updates["kernel"]).max())
        0.0

    References:
        Ma et al., `SWAN <https://arxiv.org/abs/2412.13148>`_, 2024. Deviations: Muon's
        Newton-Schulz coefficients by default; scaled to the root mean square of Adam's
        updates, so that one learning rate serves both sides; ``eps`` is relative;
        Newton-Schulz in at least float32, as in `scale_by_muon`.
    """
    check_not_negative("eps", eps)
    check_polar(polar)

    def build(layout, eps):
        del layout
        return optax.chain(
            equilibrate(partial(standardize_rows, eps=eps)),
            orthogonalize(polar),
            scale_by_shape("max"),
        )

    return on_matrices(
        build,
        hyperparams={"eps": eps},
        dimension_numbers=dimension_numbers,
        placement=placement,
        probe=polar is not newton_schulz,
    )


def swan(
    learning_rate: optax.ScalarOrSchedule,
    *,
    eps: ArrayLike = 1e-8,
    polar: Polar = newton_schulz,
    weight_decay: optax.ScalarOrSchedule = 0.0,
    weight_decay_mask: Any = None,
    dimension_numbers: Any = None,
    placement: Any = None,
    other: optax.GradientTransformation | None = None,
    other_learning_rate: optax.ScalarOrSchedule | None = None,
    mu_dtype: DTypeLike | None = None,
) -> optax.GradientTransformationExtraArgs:
    """SWAN for matrices, Adam(0.9, 0.999) for the rest.

    `scale_by_swan`, then weight decay (none in the paper) and the learning rate.

    Args:
        learning_rate: Learning rate, a number or a schedule.
        eps: Floor of a row's variance, relative to the mean square of the matrix.
        polar: Kernel that returns the polar factor.
        weight_decay: Decoupled weight decay of both sides, a number or a schedule.
        weight_decay_mask: Tree, prefix tree or callable, as in `optax.adamw`.
        dimension_numbers: Which leaves are matrices, as in `on_matrices`.
        placement: Where whole matrices live on a mesh, as in `on_matrices`.
        other: Optimizer of all other leaves; None for Adam(0.9, 0.999).
        other_learning_rate: Learning rate of that Adam; None for ``learning_rate``.
        mu_dtype: Dtype of that Adam's first moment; None for the parameter's.

    Returns:
        An optimizer of the whole tree.

    Raises:
        ValueError: If an argument is out of range.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx = om.swan(1e-3)
        >>> params = {"kernel": jnp.ones((4, 8)), "bias": jnp.zeros(8)}
        >>> updates, state = tx.update(params, tx.init(params), params)
        >>> updates["kernel"].shape
        (4, 8)
    """
    matrix = scale_by_swan(
        eps=eps,
        polar=polar,
        dimension_numbers=dimension_numbers,
        placement=placement,
    )
    return matrix_optimizer(
        matrix,
        learning_rate,
        weight_decay=weight_decay,
        weight_decay_mask=weight_decay_mask,
        dimension_numbers=dimension_numbers,
        other=other,
        other_learning_rate=other_learning_rate,
        other_b2=0.999,
        mu_dtype=mu_dtype,
    )
