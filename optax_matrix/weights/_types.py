"""Arrays in the dtype and sharding of others, as the branches of a `cond` need them."""

from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jaxtyping import Array

from optax_matrix.layout.specs import explicit_spec, own_mesh


def in_type_of(old: Any, new: Any) -> Array:
    """The array `new` in the dtype of `old`, and sharded as its type says."""
    return _reshard(new.astype(old.dtype), old, explicit_spec(old))


def whole_beside(leaf: Any, new: Any) -> Array:
    """The array `new`, under Explicit axes replicated on the mesh of a leaf."""
    return _reshard(new, leaf, ())


def _reshard(x: Any, beside: Any, spec: tuple) -> Array:
    mesh = own_mesh(beside)
    if mesh is None or AxisType.Explicit not in mesh.axis_types:
        return x
    if own_mesh(x) is not None and explicit_spec(x) == spec:
        return x
    return jax.sharding.reshard(x, NamedSharding(mesh, PartitionSpec(*spec)))
