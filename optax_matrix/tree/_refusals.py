"""Clear errors for mistakes that otherwise surface deep inside JAX or optax."""

from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from optax_matrix._dtypes import is_tiny
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
