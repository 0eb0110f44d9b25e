"""What the low-rank recipes share: Adam on coordinates, bases, the last layer."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from optax_matrix.arguments import Kernel
from optax_matrix.layout import HEADS, PathRule, by_path
from optax_matrix.transforms import Basis, given_basis, svd_basis
from optax_matrix.transforms.low_rank import coordinate_adam as coordinate_adam

SingularBasis = Literal["randomized_svd", "svd"] | Kernel
Transport = Literal["keep", "carry", "reset"] | Kernel
LastLayer = Literal["other", "method"]


def singular_basis(basis: SingularBasis, qr: Any) -> Basis:
    """The basis of leading singular vectors, approximate or exact, or a given one.

    Args:
        basis: ``"randomized_svd"``, ``"svd"``, or a function from a `Subspace`.
        qr: Kernel that orthonormalizes columns.

    Returns:
        A basis for `project_low_rank`.
    """
    if callable(basis):
        return given_basis(basis)
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
