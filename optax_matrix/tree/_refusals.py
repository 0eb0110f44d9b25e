"""Clear errors for mistakes that otherwise surface deep inside JAX, or stay unseen."""

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import optax
from jax.sharding import AxisType

from optax_matrix._dtypes import is_tiny
from optax_matrix._mesh import explicit_spec, own_mesh, shards
from optax_matrix._paths import leaves_with_keys, path_name
from optax_matrix.tree.state import is_ours, is_state


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


def init_other(other: optax.GradientTransformation, others: Any) -> Any:
    """The state of `other`; raises in our words if its `init` does."""
    try:
        return other.init(others)
    except Exception as error:
        if is_ours(error) or isinstance(error, Warning):
            raise
        raise ValueError(
            "`other` must run on the tree with None in place of matrices, and its "
            f"`init` raised {type(error).__name__}: {error}. If its mask is a function "
            "that needs the whole tree, call it first: a tree of True and False for "
            "all parameters fits, as in optax.adamw(rate, mask=mask(params))."
        ) from error


def warn_of_replicated(state: Any, specs: Any, mesh: Any) -> list[str]:
    """Warns of state that arrives replicated and should be sharded; returns its paths.

    Types do not show Auto axes, so nothing is known of such an array inside `jax.jit`.
    """
    leaves = leaves_with_keys(state)
    found = {
        path_name(keys): x.size * x.dtype.itemsize
        for (keys, x), spec in zip(leaves, jax.tree.leaves(specs), strict=True)
        if shards(spec, mesh.shape) > 1 and _is_whole(x)
    }
    if found:
        largest = sorted(found, key=lambda path: -found[path])
        names = ", ".join(largest[:3]) + (", ..." if len(found) > 3 else "")
        warnings.warn(
            f"{len(found)} arrays of the optimizer's state ({sum(found.values()):,} "
            "bytes) are whole on every device, although their matrices are sharded: "
            f"{names}. Make or restore the state with the shardings of "
            "optax_matrix.state_specs(tx, params), as `out_shardings` of jax.jit of "
            "`init` and of the training step.",
            stacklevel=2,
        )
    return list(found)


def _is_whole(x: Any) -> bool:
    if isinstance(x, jax.core.Tracer):
        mesh = own_mesh(x)
        shown = mesh is not None and set(mesh.axis_types) == {AxisType.Explicit}
        return shown and not any(explicit_spec(x))
    return isinstance(x, jax.Array) and x.sharding.is_fully_replicated
