"""Dtypes and shardings of new arrays, taken from existing arrays."""

from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jaxtyping import Array

from optax_matrix._mesh import explicit_spec, named_sharding, own_mesh


def in_type_of(old: Any, new: Any) -> Array:
    """The array `new` with the dtype of `old` and the sharding in its type.

    The branches of a `cond` must agree in both.
    """
    return _reshard(new.astype(old.dtype), old, explicit_spec(old))


def replicated_beside(leaf: Any, new: Any) -> Array:
    """The array `new`; if a leaf has Explicit axes, replicated over its mesh."""
    return _reshard(new, leaf, ())


def shardings_beside(matrices: dict[str, Any], parts: tuple) -> tuple:
    """Shardings of the parts of a split; None where types contain them.

    Frames are sharded like the leaves; permutations, rotations and numbers of merges
    are replicated over their meshes, and so is the count.
    """
    found = {path: _sharding(leaf) for path, leaf in matrices.items()}
    whole = {p: s and NamedSharding(s.mesh, PartitionSpec()) for p, s in found.items()}
    _, *others, _ = parts
    on_mesh = lambda path, tree: jax.tree.map(lambda _: whole[path], tree)
    trees = ({p: on_mesh(p, t) for p, t in tree.items()} for tree in others)
    return found, *trees, next(iter(whole.values()), None)


def _sharding(leaf: Any) -> NamedSharding | None:
    sharding = named_sharding(leaf)
    shown = sharding and set(sharding.mesh.axis_types) == {AxisType.Explicit}
    return None if shown else sharding


def _reshard(x: Any, beside: Any, spec: tuple) -> Array:
    mesh = own_mesh(beside)
    if mesh is None or AxisType.Explicit not in mesh.axis_types:
        return x
    if own_mesh(x) is not None and explicit_spec(x) == spec:
        return x
    return jax.sharding.reshard(x, NamedSharding(mesh, PartitionSpec(*spec)))
