"""What the low-rank recipes share: Adam on coordinates, bases, the last layer."""

from collections.abc import Mapping
from typing import Any, Literal

import optax
from jax.typing import ArrayLike, DTypeLike

from optax_matrix.arguments import Kernel
from optax_matrix.layout import heads_as_matrices
from optax_matrix.transforms import Basis, scale_by_second_moment, svd_basis
from optax_matrix.transforms.low_rank import largest_direction

SingularBasis = Literal["randomized_svd", "svd"]
Transport = Literal["keep", "carry", "reset"] | Kernel
LastLayer = Literal["other", "method"]


def coordinate_adam(
    b1: ArrayLike,
    b2: ArrayLike,
    bias_correction: bool,
    mu_dtype: DTypeLike | None,
    transport: Transport = "keep",
) -> optax.GradientTransformation:
    """Adam's direction, m / sqrt(v), for the ``inner`` of `project_low_rank`.

    It has no epsilon and survives gradients of 1e20 and 1e-20. Moments that were moved
    to another basis are clipped to `largest_direction`.

    Args:
        b1: Decay rate of the momentum.
        b2: Decay rate of the second moment.
        bias_correction: Whether to correct both.
        mu_dtype: Dtype of the momentum; None for float32.
        transport: What happens to the moments at a renewal.

    Returns:
        A transformation of stacks.
    """
    moved = transport not in ("keep", "reset")
    return optax.chain(
        optax.ema(b1, bias_correction, mu_dtype),
        scale_by_second_moment(b2, bias_correction=bias_correction),
        *([optax.clip(largest_direction(b1, b2))] if moved else []),
    )


def singular_basis(basis: SingularBasis, qr: Any) -> Basis:
    """The basis of leading singular vectors, approximate or exact.

    Args:
        basis: ``"randomized_svd"`` or ``"svd"``.
        qr: Kernel that orthonormalizes columns.

    Returns:
        A basis for `project_low_rank`.
    """
    return svd_basis("exact" if basis == "svd" else "randomized", qr=qr)


def with_last_layer(last_layer: LastLayer, common: Mapping[str, Any]) -> Any:
    """Dimension numbers as given, or (``"method"``) with output heads as matrices."""
    numbers = common.get("dimension_numbers")
    return numbers if last_layer == "other" else heads_as_matrices(numbers)
