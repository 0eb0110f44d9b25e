"""What turns a chain for matrices into an optimizer of a whole tree."""

from collections.abc import Callable
from typing import Any

import optax
from jax.typing import ArrayLike, DTypeLike

from optax_matrix.arguments import check_callable, check_dtype, check_rate
from optax_matrix.layout import label_params
from optax_matrix.transforms import keep_dtype

Polar = Callable[..., Any]  # (..., m, n) -> (..., m, n)


def matrix_optimizer(
    matrix: optax.GradientTransformation,
    learning_rate: optax.ScalarOrSchedule,
    *,
    weight_decay: optax.ScalarOrSchedule,
    weight_decay_mask: Any,
    dimension_numbers: Any,
    other: optax.GradientTransformation | None,
    other_learning_rate: optax.ScalarOrSchedule | None,
    other_b2: ArrayLike = 0.95,
    mu_dtype: DTypeLike | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Joins a chain for matrices with the optimizer of the other leaves.

    Matrices get the chain, decoupled weight decay and the learning rate; the other
    leaves get AdamW with the same weight decay. Decay is multiplied by the learning
    rate, as everywhere in optax.

    Args:
        matrix: Transformation of a whole tree that scales the gradients of matrices.
        learning_rate: Learning rate of the matrices, a number or a schedule.
        weight_decay: Decoupled weight decay of both sides, a number or a schedule.
        weight_decay_mask: Tree, prefix tree or callable, as in `optax.adamw`.
        dimension_numbers: Which leaves are matrices, as in `on_matrices`.
        other: Optimizer of the other leaves; None for AdamW.
        other_learning_rate: Learning rate of that AdamW; None for ``learning_rate``.
        other_b2: Second decay rate of that AdamW; the first is 0.9.
        mu_dtype: Dtype of that AdamW's first moment.

    Returns:
        An optimizer of the whole tree, an `optax.partition` of ``"matrix"`` and
        ``"other"``.

    Raises:
        ValueError: If a rate is neither a number that is not negative nor a schedule,
            or ``other`` is no transformation.
    """
    check_rate("learning_rate", learning_rate)
    check_rate("weight_decay", weight_decay)
    if other_learning_rate is None:
        other_learning_rate = learning_rate
    decayed = optax.add_decayed_weights(weight_decay, weight_decay_mask)
    return beside_other(
        optax.chain(matrix, decayed, optax.scale_by_learning_rate(learning_rate)),
        weight_decay=weight_decay,
        weight_decay_mask=weight_decay_mask,
        dimension_numbers=dimension_numbers,
        other=other,
        other_learning_rate=other_learning_rate,
        other_b2=other_b2,
        mu_dtype=mu_dtype,
    )


def beside_other(
    steps: optax.GradientTransformation,
    *,
    weight_decay: optax.ScalarOrSchedule,
    weight_decay_mask: Any,
    dimension_numbers: Any,
    other: optax.GradientTransformation | None,
    other_learning_rate: optax.ScalarOrSchedule,
    other_b2: ArrayLike = 0.95,
    other_eps: ArrayLike = 1e-8,
    mu_dtype: DTypeLike | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Joins finished steps of matrices with the optimizer of the other leaves.

    Args:
        steps: Optimizer of a whole tree, of which the matrices get the updates.
        weight_decay: Decoupled weight decay of the other leaves.
        weight_decay_mask: Tree, prefix tree or callable, as in `optax.adamw`.
        dimension_numbers: Which leaves are matrices, as in `on_matrices`.
        other: Optimizer of the other leaves; None for AdamW.
        other_learning_rate: Learning rate of that AdamW.
        other_b2: Second decay rate of that AdamW; the first is 0.9.
        other_eps: Its epsilon.
        mu_dtype: Dtype of that AdamW's first moment.

    Returns:
        An optimizer of the whole tree, an `optax.partition` of ``"matrix"`` and
        ``"other"``.

    Raises:
        ValueError: If a rate is neither a number that is not negative nor a schedule,
            or ``other`` is no transformation.
    """
    check_rate("weight_decay", weight_decay)
    check_rate("other_learning_rate", other_learning_rate)
    if mu_dtype is not None:
        check_dtype("mu_dtype", mu_dtype)
    if other is None:
        other = optax.adamw(
            other_learning_rate,
            b1=0.9,
            b2=other_b2,
            eps=other_eps,
            weight_decay=weight_decay,
            mask=weight_decay_mask,
            mu_dtype=mu_dtype,
        )
    elif not isinstance(other, optax.GradientTransformation):
        raise ValueError(
            f"`other` must be a gradient transformation or None, got {other!r}; "
            "pass a complete optimizer, such as optax.adamw(1e-3)."
        )
    labels = label_params(dimension_numbers)
    return keep_dtype(optax.partition({"matrix": steps, "other": other}, labels))


def scaled_learning_rate(
    learning_rate: optax.ScalarOrSchedule, factor: ArrayLike
) -> Any:
    """Multiplies a learning rate, be it a number or a schedule.

    Args:
        learning_rate: A number or a schedule.
        factor: What to multiply it by.

    Returns:
        A number if it was one, a schedule if it was one.

    Raises:
        ValueError: If it is neither.
    """
    check_rate("learning_rate", learning_rate)
    if callable(learning_rate):
        return lambda count: factor * learning_rate(count)
    return learning_rate * factor


def check_polar(polar: Polar) -> None:
    """Raises unless ``polar`` can be called.

    Args:
        polar: The kernel.

    Raises:
        ValueError: If it is no function.
    """
    check_callable("polar", polar)
