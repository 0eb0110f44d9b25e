"""Mistakes that `on_matrices` names before JAX or optax raises about a detail."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from optax_matrix._dtypes import is_tiny
from optax_matrix._paths import flatten_named
from optax_matrix.tree.state import is_state


def refuse_nested(inner_state: Any) -> None:
    """Raises if the transformation of the stacks is an optimizer of whole trees."""
    nodes = jax.tree.leaves(inner_state, is_leaf=is_state)
    names = [name for node in nodes if is_state(node) for name in node.method]
    if any(map(is_state, nodes)):
        raise ValueError(
            "`build` must be a transformation of stacks of matrices, such as "
            "om.momentum(0.9) or a chain of blocks, but it contains "
            f"{' and '.join(names) or '`on_matrices`'}, which finds the matrices of a "
            "tree by itself; use that without `on_matrices`."
        )


def refuse_tiny(leaves: Mapping[str, Any], matrices: Iterable[str]) -> None:
    """Raises if a matrix has a dtype of eight bits or fewer."""
    found = [path for path in matrices if is_tiny(leaves[path].dtype)]
    if found:
        raise ValueError(
            "`params` must hold matrices of 16 bits or more, got "
            f"{jnp.dtype(leaves[found[0]].dtype).name} at {found[0]!r}, where steps "
            "and momenta round to zero; train weights in bfloat16 or float32, and cast "
            "them to eight bits where the model multiplies by them."
        )


def refuse_gradient(extra_args: Mapping[str, Any], method: str | None) -> None:
    """Raises if a chain of one's own is to have the gradient of the whole tree."""
    if method is None and extra_args.get("gradient") is not None:
        raise ValueError(
            "`gradient` must not be given to `on_matrices`, whose chain sees stacks of "
            "matrices and not the tree; write on_matrices(with_gradient(chain))."
        )


def refuse_missing_params(error: Exception, params: Any) -> None:
    """Raises in our words if an error of optax's is about missing parameters."""
    if "requires the current value of parameters" in str(error):
        if params is not None:
            raise ValueError(
                "`needs_params` must be True, because `build` uses the parameters; "
                "pass needs_params=True to `on_matrices`."
            ) from None
        raise ValueError(
            "`params` must be passed to `update`, since weight decay or `other` uses "
            "the parameters; call tx.update(updates, state, params), or leave out the "
            "decay with weight_decay=0.0."
        ) from None


def refuse_missing_updates(
    init: Callable, state: Any, updates: Any, params: Any
) -> None:
    """Raises if a gradient is None but `init` saw its parameter."""
    if params is None:
        return
    held, known = flatten_named(updates)[0], flatten_named(params)[0]
    missing = sorted(known.keys() - held.keys())
    if not missing:
        return
    try:
        wanted = jax.eval_shape(init, params)
    except Exception:  # Then the missing gradients are not the cause.
        return
    if jax.tree.structure(state) == jax.tree.structure(wanted):
        raise ValueError(
            "`updates` must have a gradient for every parameter that `init` saw, got "
            f"None for {missing[0]!r}; pass zeros, or give `init` and `update` only "
            "the parameters that are trained, for example with optax.partition."
        )
