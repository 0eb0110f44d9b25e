"""Runs a function on every owner, in one `shard_map`."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from optax_matrix._mesh import (
    explicit_axes,
    explicit_part,
    explicit_spec,
    named_sharding,
    own_mesh,
    unreduced_axes,
    with_auto_axes,
)
from optax_matrix._paths import (
    group_of,
    key_name,
    leaves_with_keys,
    map_with_keys,
    path_name,
)
from optax_matrix.sharding._owner_layout import OwnerLayout
from optax_matrix.stacks.slots import slot_named, slots_in


def on_every_device(
    layout: OwnerLayout, f: Callable, in_specs: Any, out_specs: Any, full_specs: Any
) -> Callable:
    """`f` in one `shard_map`, manual over all axes except those inside matrices.

    `full_specs` are the specs of the results with the axes inside matrices; all other
    specs are without those axes.
    """
    mesh = layout.mesh
    made_auto = layout.inside and AxisType.Explicit in mesh.axis_types
    run = jax.shard_map(
        f,
        mesh=None if made_auto else mesh,  # None is the mesh of the context.
        in_specs=in_specs,
        out_specs=out_specs,
        axis_names=set(mesh.axis_names) - set(layout.inside),
        check_vma=False,
    )
    if not layout.inside:
        return jax.jit(run)
    # The partitioner decides inside the matrices; results need their shardings.
    shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), full_specs)
    if made_auto:
        run = with_auto_axes(run, shardings)
        known = isinstance(mesh, jax.sharding.Mesh)  # Not while tracing.
        return jax.jit(run, out_shardings=shardings) if known else jax.jit(run)
    constrain = partial(jax.lax.with_sharding_constraint, shardings=shardings)
    return jax.jit(lambda *args: constrain(run(*args)))


def as_specified(tree: Any, specs: Any, mesh: Any) -> Any:
    """Reshards the arrays whose types do not show the sharding of their specs.

    Gradients may have any sharding, and a restored state may be replicated. Types do
    not show Auto axes; there `shard_map` reshards.
    """
    if not explicit_axes(mesh):
        return tree

    def bring(leaf, spec):
        shown = explicit_part(spec, mesh)
        if own_mesh(leaf) is not None and PartitionSpec(*explicit_spec(leaf)) == shown:
            return leaf
        if axes := unreduced_axes(leaf):  # Only the rest changes.
            spec = PartitionSpec(*shown, unreduced=frozenset(axes))
        else:
            spec = shown
        return jax.sharding.reshard(leaf, NamedSharding(mesh, spec))

    return jax.tree.map(bring, tree, specs)


def with_unreduced(leaves: Mapping[str, Any], specs: Mapping[str, Any]) -> dict:
    """The specs of leaves, by path, with the axes along which they are unreduced."""
    axes = {path: frozenset(unreduced_axes(x)) for path, x in leaves.items()}
    added = lambda path: PartitionSpec(*specs[path], unreduced=axes[path])
    return {path: added(path) if axes[path] else specs[path] for path in leaves}


def anchor(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """One traced leaf on a mesh, by path, if there is any.

    `jax.jit` of `init` drops unused arguments, and the devices with them.
    """
    is_traced = lambda x: isinstance(x, jax.core.Tracer) and own_mesh(x) is not None
    traced = [p for p, x in leaves.items() if is_traced(x)]
    return {p: leaves[p] for p in traced[:1]}


def own_part(manifest: Any, group: Any, leaves: Mapping[str, Any]) -> Any:
    """The rows of a group's manifest that belong to this device.

    The result depends on `leaves`, see `anchor`, but not on their values.
    """
    axes = group.spec[0]
    count = len(manifest) // jax.lax.axis_size(axes)
    start = jax.lax.axis_index(axes) * count
    for leaf in leaves.values():
        start += leaf.ravel()[:0].sum().astype(start.dtype)
    return jax.lax.dynamic_slice_in_dim(jnp.asarray(manifest), start, count)


def specs_of_state(layout: OwnerLayout, state: Any) -> tuple[Any, Any]:
    """Specs of a state, without and with the axes inside matrices.

    State is per matrix under the name of a stack; all other state is replicated.
    """
    pools = {s.pool: group_of(k, layout.groups) for k, s, _ in slots_in(state)}

    def of_leaf(inside, keys, x):
        group = group_of(keys, layout.groups)
        if key_name(keys[0]) == "slots":
            group = pools[int(key_name(keys[1]).partition("_")[0])]
            return PartitionSpec(group.spec[0], None)
        if slot_named(keys[-1]) is not None and x.shape:
            return PartitionSpec(group.spec[0], *[None] * (len(x.shape) - 1))
        if group is None or not x.shape:
            return PartitionSpec(*[None] * len(x.shape))
        if x.shape[0] != group.count:
            raise ValueError(
                f"State {path_name(keys)!r} must be a scalar or have the "
                f"{group.count} matrices of its stack in front, got shape {x.shape}; "
                "`owners` needs to know which state belongs to which matrix."
            )
        rest = group.spec[1:] if inside and x.shape == group.shape else None
        return PartitionSpec(group.spec[0], *(rest or [None] * (len(x.shape) - 1)))

    manual = map_with_keys(partial(of_leaf, False), state)
    full = map_with_keys(partial(of_leaf, True), state) if layout.inside else manual
    return manual, full


def check_names(layout: OwnerLayout, whole: Any, local: Any) -> None:
    """Raises if state outside the groups' names changes with the number of matrices.

    Such state would be treated as replicated. `whole` are the shapes of the state of
    all matrices, `local` those of one device.
    """
    leaves = leaves_with_keys(whole)
    for (keys, x), y in zip(leaves, jax.tree.leaves(local), strict=True):
        if x.shape != y.shape and group_of(keys, layout.groups) is None:
            raise ValueError(
                f"State {path_name(keys)!r} of shape {x.shape} must be under the name "
                "of its stack, by which state of single matrices is recognized; make "
                "state with jax.tree.map over the stacks."
            )


def check_param_specs(layout: OwnerLayout, params: Mapping[str, Any]) -> None:
    """Raises if a concrete parameter's sharding differs from ``param_specs``."""
    for path, leaf in params.items():
        if (sharding := named_sharding(leaf)) is None:
            continue
        given = NamedSharding(sharding.mesh, layout.full_specs[path])
        if not sharding.is_equivalent_to(given, leaf.ndim):
            raise ValueError(
                f"`param_specs` must say how parameters are sharded, but {path!r} is "
                f"sharded as {sharding.spec}, not as {given.spec}; pass the specs that "
                "it has (owners.from_params), or shard it so."
            )
