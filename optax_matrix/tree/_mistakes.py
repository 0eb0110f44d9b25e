"""What `update` of `on_matrices` refuses, in words."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from optax_matrix.matrices.paths import path_name
from optax_matrix.stacks.layout import Layout
from optax_matrix.tree._trial import raised_in
from optax_matrix.tree.state import OnMatricesState


def is_ours(error: Exception) -> bool:
    """Whether an error says what to do already."""
    return isinstance(error, ValueError) and raised_in(error, "optax_matrix")


def with_updates_only(params: Any, updates: Any) -> Any:
    """Parameters without those whose update is None.

    Equinox's own loops pass the whole model, with its functions and ints.
    """
    is_none = lambda x: x is None
    leaves, structure = jax.tree.flatten(updates, is_leaf=is_none)
    if not any(map(is_none, leaves)):
        return params
    try:
        parts = structure.flatten_up_to(params)
    except (TypeError, ValueError):
        return params  # Of another structure; what follows says so.
    pairs = zip(leaves, parts, strict=True)
    return structure.unflatten([None if x is None else part for x, part in pairs])


def check_shapes(updates: Mapping[str, Any], params: Mapping[str, Any]) -> None:
    """Raises unless every gradient, by path, has the shape of its parameter."""
    for path, leaf in updates.items():
        if path not in params:
            raise ValueError(
                "`updates` must be gradients of `params`, got one for "
                f"{path!r}, which `params` lack; pass trees of one structure."
            )
        got, wanted = np.shape(leaf), np.shape(params[path])
        if got != wanted:
            raise ValueError(
                f"`updates` must have the shapes of the parameters, got {got} for "
                f"{path!r} of shape {wanted}; pass gradients as jax.grad returns them, "
                "neither transposed nor reshaped."
            )


def check_structure(init: Callable, state: Any, params: Any) -> None:
    """Raises if a state has another structure than that of `init`."""
    try:
        wanted = jax.eval_shape(init, params)
    except Exception:  # Then the state is not the cause.
        return
    if jax.tree.structure(state) == jax.tree.structure(wanted):
        return
    must = "`state` must be what `init` of this optimizer makes for these parameters"
    held, needed = _paths(state), _paths(wanted)
    if held == needed:
        raise ValueError(
            f"{must}: its leaves are right, but its containers are others (lists or "
            "dicts instead of named tuples); restore it with tx.init(params) as the "
            "target."
        )
    raise ValueError(
        f"{must}, but it lacks {_listed(needed - held)} and has "
        f"{_listed(held - needed)} instead; pass tx.init(params), or restore a "
        "checkpoint of this optimizer."
    )


def _paths(tree: Any) -> set[str]:
    return {path_name(keys) for keys, _ in jax.tree.leaves_with_path(tree)}


def _listed(paths: set[str]) -> str:
    first = sorted(paths)[:3]
    more = len(paths) - len(first)
    return (", ".join(first) or "nothing") + (f" and {more} more" if more else "")


def check_manifest(layout: Layout, state: OnMatricesState) -> None:
    """Raises unless a state holds the stacks of a layout."""
    held, wanted = set(state.manifest), set(layout.groups)
    if held != wanted:
        raise ValueError(
            "`state` must belong to these parameters: it holds stacks "
            f"{sorted(held - wanted)}, but they need {sorted(wanted - held)} "
            "(name: shape, residual side, dtype, checksum of the parameters' paths, "
            "shapes and axes). "
            "If a layer was renamed, added or frozen, or the sharding, `max_batch` or "
            "`dimension_numbers` changed, carry the state over with "
            "optax_matrix.to_portable and from_portable; if the gradients have another "
            "dtype or shape than the parameters, pass `params` to `update`."
        )
