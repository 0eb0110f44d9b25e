"""SinkGD: the gradient itself, rows and columns scaled in turn; no state."""

from functools import partial
from typing import Any

import optax
from jax.typing import ArrayLike, DTypeLike

from optax_matrix.arguments import check_choice, check_positive, check_positive_int
from optax_matrix.layout import on_matrices
from optax_matrix.linalg import sinkhorn
from optax_matrix.recipes._optimizer import matrix_optimizer
from optax_matrix.transforms import equilibrate, match_rms


def scale_by_sinkgd(
    *,
    rounds: int = 5,
    scheme: str = "alternating",
    target: ArrayLike = 0.2,
    dimension_numbers: Any = None,
    placement: Any = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Scales the gradients of matrices as SinkGD does; leaves the others alone.

    Rows to norm :math:`\sqrt n` and columns to norm :math:`\sqrt m`, in turn, for a few
    rounds; then the whole matrix to root mean square ``target``.

    Args:
        rounds: Rounds of the scaling.
        scheme: ``"alternating"`` (SinkGD), ``"simultaneous"`` (the variant in ARO's
            paper) or ``"ruiz"``, as in `sinkhorn`.
        target: Root mean square of the update; 0.2 is the usual size of Adam's.
        dimension_numbers: Which leaves are matrices, as in `on_matrices`.
        placement: Where whole matrices live on a mesh, as in `on_matrices`.

    Returns:
        A stateless transformation for any tree.

    Raises:
        ValueError: If an argument is out of range.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx = om.scale_by_sinkgd(target=1.0)
        >>> params = {"kernel": jnp.array([[1.0, 2.0], [3.0, 6.0]])}
        >>> updates, _ = tx.update(params, tx.init(params))
        >>> updates["kernel"].round(3).tolist()
        [[1.0, 1.0], [1.0, 1.0]]

    References:
        Scetbon et al., `Gradient multi-normalization <https://arxiv.org/abs/2502.06742>`_,
        2025. Deviation: the root mean square of Adam's updates by ARO's rule.
    """
    check_positive_int("rounds", rounds)
    check_choice("scheme", scheme, ("alternating", "simultaneous", "ruiz"))
    check_positive("target", target)

    def build(layout, target):
        del layout
        kernel = partial(sinkhorn, rounds=rounds, scheme=scheme)  # pyright: ignore
        return optax.chain(equilibrate(kernel), match_rms(target))

    return on_matrices(
        build,
        hyperparams={"target": target},
        dimension_numbers=dimension_numbers,
        placement=placement,
        probe=False,
    )


def sinkgd(
    learning_rate: optax.ScalarOrSchedule,
    *,
    rounds: int = 5,
    scheme: str = "alternating",
    target: ArrayLike = 0.2,
    weight_decay: optax.ScalarOrSchedule = 0.1,
    weight_decay_mask: Any = None,
    dimension_numbers: Any = None,
    placement: Any = None,
    other: optax.GradientTransformation | None = None,
    other_learning_rate: optax.ScalarOrSchedule | None = None,
    mu_dtype: DTypeLike | None = None,
) -> optax.GradientTransformationExtraArgs:
    """SinkGD for matrices, AdamW(0.9, 0.95) for the rest, at one learning rate.

    `scale_by_sinkgd`, then decoupled weight decay and the learning rate, in the setting
    of ARO's paper, where every method has the update size of AdamW.

    Args:
        learning_rate: Learning rate, a number or a schedule.
        rounds: Rounds of the scaling.
        scheme: ``"alternating"``, ``"simultaneous"`` or ``"ruiz"``.
        target: Root mean square of the update.
        weight_decay: Decoupled weight decay of both sides, a number or a schedule.
        weight_decay_mask: Tree, prefix tree or callable, as in `optax.adamw`.
        dimension_numbers: Which leaves are matrices, as in `on_matrices`.
        placement: Where whole matrices live on a mesh, as in `on_matrices`.
        other: Optimizer of all other leaves; None for AdamW(0.9, 0.95).
        other_learning_rate: Learning rate of that AdamW; None for ``learning_rate``.
        mu_dtype: Dtype of that AdamW's first moment; None for the parameter's.

    Returns:
        An optimizer of the whole tree.

    Raises:
        ValueError: If an argument is out of range.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx = om.sinkgd(1e-3)
        >>> params = {"kernel": jnp.ones((4, 8)), "bias": jnp.zeros(8)}
        >>> updates, state = tx.update(params, tx.init(params), params)
        >>> updates["kernel"].shape
        (4, 8)
    """
    matrix = scale_by_sinkgd(
        rounds=rounds,
        scheme=scheme,
        target=target,
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
        mu_dtype=mu_dtype,
    )
