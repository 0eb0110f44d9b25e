"""Matrices that start at zero, which rotations never move."""

import warnings
from collections.abc import Mapping
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from optax_matrix._paths import shown
from optax_matrix.matrices.view import MatrixView


def zero_leaves(leaves: Mapping[str, Any], views: Mapping[str, MatrixView]) -> set[str]:
    """The paths of leaves with a matrix of zeros, as far as values can be seen.

    Tracers, shapes, deleted arrays and arrays of other hosts are skipped.
    """

    def has_zeros(path: str) -> bool:
        leaf, view = leaves[path], views[path]
        if not _can_be_seen(leaf) or not leaf.size:
            return False
        with jax.ensure_compile_time_eval():  # Even if `init` is traced.
            zero = leaf == 0
            if view.output_sections == view.reduction_sections == 1:
                axes = view.output_axes + view.reduction_axes
                return bool(jnp.any(jnp.all(zero, axis=axes)))
            # Sections may cut sharded axes, so they are cut from an unsharded copy.
            pieces = view.to_matrices(jnp.asarray(np.asarray(zero)[None]))
            return any(bool(jnp.any(jnp.all(x, axis=(1, 2)))) for x in pieces)

    return {path for path in views if path in leaves and has_zeros(path)}


def warn_of_zero_leaves(
    leaves: Mapping[str, Any], views: Mapping[str, MatrixView], name: str
) -> None:
    """Warns of matrices that a method will never move because they start at zero."""
    if found := sorted(zero_leaves(leaves, views)):
        paths = shown(found)
        warnings.warn(
            f"Matrices that start at zero are never moved by {name}, because zero "
            f"cannot be turned: {paths}. Initialize them, for example with "
            "om.initialize_matrices, or leave them to the other optimizer with "
            "dimension_numbers=om.matrices.by_path(exclude=...).",
            stacklevel=2,
        )


def _can_be_seen(leaf: Any) -> bool:
    if isinstance(leaf, jax.core.Tracer):
        return False
    if isinstance(leaf, jax.Array):
        return leaf.is_fully_addressable and not leaf.is_deleted()
    return isinstance(leaf, np.ndarray)
