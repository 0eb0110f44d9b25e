"""Adam's direction for coordinates in a subspace."""

import optax
from jax.typing import ArrayLike, DTypeLike

from optax_matrix.transforms.first_moments import momentum
from optax_matrix.transforms.second_moments import scale_by_second_moment


def coordinate_adam(
    b1: ArrayLike,
    b2: ArrayLike,
    bias_correction: bool,
    mu_dtype: DTypeLike | None,
    eps: ArrayLike = 0.0,
) -> optax.GradientTransformation:
    """Adam's direction, m / sqrt(v), for the ``inner`` of `project_low_rank`.

    It survives gradients of 1e20 and 1e-20, and its entries are bounded.

    Args:
        b1: Decay rate of the momentum.
        b2: Decay rate of the second moment.
        bias_correction: Whether to correct both.
        mu_dtype: Dtype of the momentum; None for float32.
        eps: Epsilon, as in `scale_by_second_moment`.

    Returns:
        A transformation of stacks.
    """
    return optax.chain(
        momentum(b1, bias_correction=bias_correction, dtype=mu_dtype),
        scale_by_second_moment(b2, bias_correction=bias_correction, eps=eps),
    )
