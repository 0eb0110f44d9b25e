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
    """Adam's direction, m / sqrt(v), for the ``inner`` of `project_low_rank`."""
    return optax.chain(
        momentum(b1, bias_correction=bias_correction, dtype=mu_dtype),
        scale_by_second_moment(b2, bias_correction=bias_correction, eps=eps),
    )
