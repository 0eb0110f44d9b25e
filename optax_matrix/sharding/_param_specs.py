"""The mesh and the parameters' partition specs, from types or from ``param_specs``."""

import math
from collections.abc import Mapping
from typing import Any

from jax.sharding import AxisType, NamedSharding, PartitionSpec

from optax_matrix._mesh import context_mesh, explicit_spec, named_sharding, own_mesh
from optax_matrix._paths import named_leaves
from optax_matrix.matrices.view import MatrixView

Given = Mapping[str, Any]  # Path to PartitionSpec or NamedSharding.
Spec = tuple[tuple[str, ...], ...]  # Mesh axes of each axis of a leaf.


def given_specs(param_specs: Any) -> Given:
    """Partition specs or named shardings by path; one for all has the path ""."""
    is_spec = lambda x: isinstance(x, (PartitionSpec, NamedSharding))
    given = named_leaves(param_specs, is_leaf=is_spec)
    for path, spec in given.items():
        if not is_spec(spec):
            raise ValueError(
                "`param_specs` must hold jax.sharding.PartitionSpec or NamedSharding, "
                f"got {spec!r} at {path!r}; use PartitionSpec() for a replicated array."
            )
    return given


def given_mesh(given: Given) -> Any:
    """The mesh of the first named sharding, else that of `jax.set_mesh`."""
    for sharding in given.values():
        if isinstance(sharding, NamedSharding):
            return sharding.mesh
    return context_mesh()


def mesh_axes_of(mesh: Any, axes: str | tuple[str, ...]) -> tuple[str, ...]:
    """The names of axes as a tuple; raises unless the mesh has them."""
    axes = (axes,) if isinstance(axes, str) else tuple(axes)
    if mesh is None:
        raise ValueError(
            f"`mesh_axes` {axes} must be axes of a mesh, but the parameters are on "
            "none, and shapes and PartitionSpec name none. Either run `init` and "
            "`update` under jax.set_mesh(mesh), or give NamedSharding(mesh, spec) in "
            "owners(..., param_specs=...)."
        )
    if missing := [x for x in axes if x not in mesh.axis_names]:
        raise ValueError(
            f"`mesh_axes` must be axes of the mesh {tuple(mesh.axis_names)}, got "
            f"{missing}."
        )
    kinds = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    if manual := [x for x in axes if kinds[x] == AxisType.Manual]:
        raise ValueError(
            f"`mesh_axes` must not be Manual, got {manual}: in this jax.shard_map each "
            "device has a part of its own along them; name other axes, or call `init` "
            "and `update` outside of it."
        )
    return axes


def spec_of_parameter(path: str, leaf: Any, mesh: Any, given: Given) -> Spec:
    """The mesh axes of each axis of a parameter, from its type or from given specs.

    Types decide if no axis is Auto, because they show all axes then. The Manual axes of
    a `jax.shard_map` around the step split no array inside of it.
    """
    own = own_mesh(leaf)
    if own is not None and dict(own.shape) != dict(mesh.shape):
        raise ValueError(
            f"Parameters must be on one mesh, but {path!r} is on {dict(own.shape)} and "
            f"others are on {dict(mesh.shape)}; give each mesh an optimizer of its own "
            "(optax.partition)."
        )
    given_spec: Any = look_up(path, given)
    if given_spec is not None:
        given_spec = checked_spec(path, leaf.shape, given_spec, mesh)
    if own is None or AxisType.Auto in mesh.axis_types:
        if given_spec is None:
            raise ValueError(_missing(path, mesh, given))
        return given_spec
    typed = checked_spec(path, leaf.shape, explicit_spec(leaf), mesh)
    if given_spec is not None and given_spec != typed:
        raise ValueError(
            f"`param_specs` of {path!r} must agree with its type, which has "
            f"{_shown(typed)}, got {_shown(given_spec)}; omit them, types are enough "
            "under Explicit axes."
        )
    return typed


def look_up(path: str, given: Given) -> tuple | None:
    """The spec given for a path or for a prefix of it; None if there is none."""
    parts = path.split("/")
    for k in range(len(parts), -1, -1):
        if (prefix := "/".join(parts[:k])) in given:
            found = given[prefix]
            return tuple(found.spec if isinstance(found, NamedSharding) else found)
    return None


def checked_spec(path: str, shape: Any, spec: tuple, mesh: Any) -> Spec:
    """A spec in full rank, entries tuples of mesh axes; raises if it does not fit."""
    if len(spec) > len(shape):
        raise ValueError(
            f"`param_specs` of {path!r} must have at most {len(shape)} entries for "
            f"shape {tuple(shape)}, got {PartitionSpec(*spec)}; give each parameter "
            "its own."
        )
    entries = tuple(spec) + (None,) * (len(shape) - len(spec))
    axes = tuple(_axes(entry) for entry in entries)
    names = [name for entry in axes for name in entry]
    if len(set(names)) < len(names):
        raise ValueError(
            f"`param_specs` of {path!r} must not name a mesh axis twice, got "
            f"{PartitionSpec(*spec)}."
        )
    if mesh is not None:
        for size, entry in zip(shape, axes, strict=True):
            _check_fit(path, size, entry, mesh)
    return axes


def _axes(entry: Any) -> tuple[str, ...]:
    if entry is None:
        return ()
    return tuple(entry) if isinstance(entry, tuple) else (entry,)


def _shown(axes: Spec) -> PartitionSpec:
    return PartitionSpec(*(entry or None for entry in axes))


def _missing(path: str, mesh: Any, given: Given) -> str:
    if given:
        return (
            f"`param_specs` must cover every matrix, but have no entry for {path!r}, "
            f"only for {', '.join(map(repr, list(given)[:3]))}; give them in a tree "
            "like the parameters that `init` gets."
        )
    pairs = zip(mesh.axis_names, mesh.axis_types, strict=True)
    kinds = ", ".join(f"{name}: {kind}" for name, kind in pairs)
    is_typed = set(mesh.axis_types) == {AxisType.Explicit}
    typed = "give parameters that are on it" if is_typed else "make all axes Explicit"
    return (
        f"`param_specs` must say how {path!r} is sharded: types do not show it on this "
        f"mesh ({kinds}); pass owners(mesh_axes, param_specs={{path: PartitionSpec}}) "
        f"or owners.from_params(params, mesh_axes), or {typed}."
    )


def _check_fit(path: str, size: int, names: tuple[str, ...], mesh: Any) -> None:
    if unknown := [name for name in names if name not in mesh.axis_names]:
        raise ValueError(
            f"`param_specs` of {path!r} must name axes of the mesh "
            f"{tuple(mesh.axis_names)}, got {unknown}; translate logical names first "
            "(Flax: nn.logical_to_mesh), or take owners.from_params."
        )
    shards = math.prod([mesh.shape[name] for name in names])
    if size % shards:
        raise ValueError(
            f"`param_specs` of {path!r} must divide its axes, but {size} is not "
            f"divisible by the {shards} devices along {names}; do not shard that axis."
        )


def axes_inside(
    views: Mapping[str, MatrixView], specs: Mapping[str, Spec], owners: tuple[str, ...]
) -> tuple[str, ...]:
    """Mesh axes that split a matrix and are not owner axes."""
    splitting = [
        x
        for path, view in views.items()
        for a in view.output_axes + view.reduction_axes
        for x in specs[path][a]
        if x not in owners
    ]
    return tuple(dict.fromkeys(splitting))


def shardings_of(params: Any) -> dict[str, NamedSharding]:
    """The sharding of each parameter, by path; raises if one has none."""
    found = {}
    for path, leaf in named_leaves(params).items():
        if (sharding := named_sharding(leaf)) is None:
            raise ValueError(
                "`params` must be on a mesh (jax.device_put with a NamedSharding), "
                f"but {path!r} is not; shard it, or pass owners(..., param_specs=)."
            )
        found[path] = sharding
    return found
