"""State that is whole on every device although it has a sharding."""

import warnings
from typing import Any

import jax
import jax.core
from jax.sharding import AxisType

from optax_matrix._mesh import explicit_spec, own_mesh, shards
from optax_matrix._paths import leaves_with_keys, path_name


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
