"""Casts to the dtype and sharding of other arrays, as branches of a `cond` require."""

from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jaxtyping import Array

from optax_matrix.layout.specs import explicit_spec, own_mesh


def in_type_of(old: Any, new: Any) -> Array:
    """The array `new` with the dtype of `old` and the sharding in its type."""
    return _reshard(new.astype(old.dtype), old, explicit_spec(old))


def whole_beside(leaf: Any, new: Any) -> Array:
    """The array `new`; if a leaf has Explicit axes, replicated over its mesh."""
    return _reshard(new, leaf, ())


def _reshard(x: Any, beside: Any, spec: tuple) -> Array:
    mesh = own_mesh(beside)
    if mesh is None or AxisType.Explicit not in mesh.axis_types:
        return x
    if own_mesh(x) is not None and explicit_spec(x) == spec:
        return x
    return jax.sharding.reshard(x, NamedSharding(mesh, PartitionSpec(*spec)))
