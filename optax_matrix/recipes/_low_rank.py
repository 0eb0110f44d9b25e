"""What the low-rank recipes share: Adam on coordinates, and the last layer."""

from typing import Any

import optax
from jax.typing import ArrayLike, DTypeLike

from optax_matrix.arguments import check_choice
from optax_matrix.layout import HEADS, PathRule, by_path
from optax_matrix.transforms import scale_by_second_moment

LAST_LAYERS = ("other", "method")


def coordinate_adam(
    b1: ArrayLike,
    b2: ArrayLike,
    *,
    bias_correction: bool,
    mu_dtype: DTypeLike | None,
) -> optax.GradientTransformation:
    """Adam's direction, m / sqrt(v), for the ``inner`` of `project_low_rank`.

    Args:
        b1: Decay rate of the momentum.
        b2: Decay rate of the second moment.
        bias_correction: Whether to correct both.
        mu_dtype: Dtype of the momentum; None for float32.

    Returns:
        A transformation that survives gradients of 1e20 and 1e-20; no epsilon.
    """
    return optax.chain(
        optax.ema(b1, bias_correction, mu_dtype),
        scale_by_second_moment(b2, bias_correction=bias_correction),
    )


def with_last_layer(last_layer: str, dimension_numbers: Any) -> Any:
    """Dimension numbers by which the output head is a matrix, or as they are.

    Args:
        last_layer: ``"method"`` or ``"other"``.
        dimension_numbers: As in `on_matrices`.

    Returns:
        Dimension numbers.

    Raises:
        ValueError: If ``last_layer`` is something else, or ``"method"`` beside
            dimension numbers that speak of every leaf already.
    """
    check_choice("last_layer", last_layer, LAST_LAYERS)
    if last_layer == "other":
        return dimension_numbers
    if dimension_numbers is not None and not isinstance(dimension_numbers, PathRule):
        raise ValueError(
            "`last_layer` must be 'other' beside a tree or function of dimension "
            f"numbers, got {last_layer!r}; give the head numbers there."
        )
    return by_path(include=f"(?i){HEADS}", otherwise=dimension_numbers)
