"""What the low-rank recipes share: Adam on coordinates, bases, the last layer."""

from collections.abc import Mapping
from typing import Any, Literal

from optax_matrix._arguments import Kernel
from optax_matrix.matrices import heads_as_matrices
from optax_matrix.transforms import Basis, given_basis
from optax_matrix.transforms.low_rank import (
    coordinate_adam as coordinate_adam,
    svd_basis,
)

SingularBasis = Literal["randomized_svd", "svd"] | Kernel
Transport = Literal["keep", "carry", "reset"] | Kernel
LastLayer = Literal["other", "method"]


def singular_basis(basis: SingularBasis, qr: Any) -> Basis:
    """The basis of leading singular vectors, approximate or exact, or a given one."""
    if callable(basis):
        return given_basis(basis)
    method = "exact" if basis == "svd" else "randomized"
    return svd_basis(method, qr=qr)


def with_last_layer(last_layer: LastLayer, common: Mapping[str, Any]) -> Any:
    """Dimension numbers as given, or (``"method"``) with output heads as matrices."""
    numbers = common.get("dimension_numbers")
    return numbers if last_layer == "other" else heads_as_matrices(numbers)
