"""Matrices that start at zero, which rotations never move."""

import warnings
from collections.abc import Mapping
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
import optax

from optax_matrix.matrices.paths import named_leaves
from optax_matrix.matrices.rules import resolve
from optax_matrix.matrices.view import MatrixView


def zero_leaves(leaves: Mapping[str, Any], views: Mapping[str, MatrixView]) -> set[str]:
    """The leaves with a matrix of zeros, as far as values can be seen.

    Args:
        leaves: Leaves by path; tracers, shapes, deleted arrays and arrays of other
            hosts are skipped.
        views: Their views as matrices.

    Returns:
        Their paths.
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
            # Sections may cut sharded axes, so they are made of an unsharded copy.
            pieces = view.to_matrices(jnp.asarray(np.asarray(zero)[None]))
            return any(bool(jnp.any(jnp.all(x, axis=(1, 2)))) for x in pieces)

    return {path for path in views if path in leaves and has_zeros(path)}


def warn_of_zeros(tx: Any, dimension_numbers: Any, name: str) -> Any:
    """A transformation whose `init` warns of matrices that start at zero.

    Args:
        tx: A transformation that never moves such matrices.
        dimension_numbers: Which leaves are its matrices, as in `on_matrices`.
        name: Its name, for the message.

    Returns:
        The transformation.
    """

    def init_fn(params: Any) -> Any:
        if type(params).__name__ != "_ParamsPlaceholder":  # Of `optax.tree.map_params`.
            resolved = resolve(dimension_numbers, params)
            views = {p: r.view for p, r in resolved.items() if r.view is not None}
            warn_of_zero_leaves(named_leaves(params), views, name)
        return tx.init(params)

    return optax.GradientTransformationExtraArgs(init_fn, tx.update)


def warn_of_zero_leaves(
    leaves: Mapping[str, Any], views: Mapping[str, MatrixView], name: str
) -> None:
    """Warns of leaves that a method will never move because they start at zero.

    Args:
        leaves: Leaves by path.
        views: The views of those that are matrices.
        name: Name of the method.
    """
    if found := sorted(zero_leaves(leaves, views)):
        paths = ", ".join(found[:5]) + (", ..." if len(found) > 5 else "")
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
