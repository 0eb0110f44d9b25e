"""What the low-rank recipes share: Adam on coordinates, bases, the last layer."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import optax
from jax.typing import ArrayLike, DTypeLike

from optax_matrix.arguments import Kernel
from optax_matrix.layout import HEADS, PathRule, by_path
from optax_matrix.transforms import Basis, momentum, scale_by_second_moment, svd_basis

SingularBasis = Literal["randomized_svd", "svd"]
Transport = Literal["keep", "carry", "reset"] | Kernel
LastLayer = Literal["other", "method"]


def coordinate_adam(
    b1: ArrayLike, b2: ArrayLike, bias_correction: bool, mu_dtype: DTypeLike | None
) -> optax.GradientTransformation:
    """Adam's direction, m / sqrt(v), for the ``inner`` of `project_low_rank`.

    It has no epsilon and survives gradients of 1e20 and 1e-20.

    Args:
        b1: Decay rate of the momentum.
        b2: Decay rate of the second moment.
        bias_correction: Whether to correct both.
        mu_dtype: Dtype of the momentum; None for float32.

    Returns:
        A transformation of stacks.
    """
    return optax.chain(
        momentum(b1, bias_correction=bias_correction, dtype=mu_dtype),
        scale_by_second_moment(b2, bias_correction=bias_correction),
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
    """Dimension numbers for which the output head is a matrix, or those given.

    Args:
        last_layer: ``"method"`` for a matrix, or ``"other"``.
        common: The common keywords of the recipe.

    Returns:
        Dimension numbers.

    Raises:
        ValueError: If ``last_layer="method"`` is passed beside dimension numbers that
            cover every leaf already.
    """
    numbers = common.get("dimension_numbers")
    if last_layer == "other":
        return numbers
    if numbers is not None and not isinstance(numbers, PathRule):
        raise ValueError(
            "`last_layer` must be 'other' beside a tree or function of dimension "
            f"numbers, got {last_layer!r}; give the head numbers there."
        )
    rule = by_path(include=f"(?i){HEADS}", otherwise=numbers)
    return dataclasses.replace(rule, patterns=numbers.patterns if numbers else ())
