"""Bases by name."""

from collections.abc import Callable
from functools import partial
from typing import Any

from optax_matrix._arguments import check_callable, check_choice
from optax_matrix.transforms.low_rank._basis import Basis
from optax_matrix.transforms.low_rank._subspace_bases import (
    gaussian_basis,
    orthonormal_basis,
    subspace_basis,
    svd_basis,
)

SUBSPACE_BASES: dict[str, Callable[..., Basis]] = {
    "randomized_svd": svd_basis,
    "svd": partial(svd_basis, "exact"),
    "subspace": subspace_basis,
    "gaussian": gaussian_basis,
    "orthonormal": orthonormal_basis,
}


def find_basis(basis: Any) -> Basis:
    """Finds a basis by name, or makes one of functions, the first fields of `Basis`."""
    if isinstance(basis, str):
        check_choice("basis", basis, SUBSPACE_BASES)
        return SUBSPACE_BASES[basis]()
    if not isinstance(basis, tuple) or not 3 <= len(basis) <= len(Basis._fields):
        raise ValueError(
            f"`basis` must be one of {', '.join(SUBSPACE_BASES)}, or functions "
            "(init, track, refresh) as in optax_matrix.transforms.Basis, got "
            f"{basis!r}."
        )
    found = Basis(*basis)
    for name in ("init", "track", "refresh"):
        check_callable(f"basis.{name}", getattr(found, name))
    return found
