"""Running on sharded parameters where they are, in Auto and Explicit mode."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from optax_matrix.layout._layout import Layout, make_layout
from optax_matrix.layout.paths import group_of
from optax_matrix.layout.specs import (
    explicit_spec,
    is_recording,
    named_sharding,
    note,
    visible_mesh,
    visible_spec,
    with_auto_axes,
)


class AsSharded:
    """The placement of ``placement=None``: parameters and state stay as they lie.

    Under Explicit axes, where contractions and decompositions of sharded matrices
    raise, the step runs with its axes made Auto and the types of its inputs given back
    to its outputs. Otherwise the partitioner decides. State of the stacks' shape is
    born with the sharding of its first leaf, as far as it can be seen.
    """

    def layout(
        self, leaves: Any, dimension_numbers: Any, max_batch: int | None
    ) -> Layout:
        """Groups the matrix leaves."""
        return make_layout(leaves, dimension_numbers, max_batch)

    def init(
        self,
        layout: Layout,
        make_state: Callable[[Layout, Any, Any], Any],
        leaves: Mapping[str, Any],
        arrays: Any,
        needs_params: bool,
    ) -> Any:
        """Calls ``make_state(layout, stacks, arrays)`` and shards the result."""

        def make(leaves, arrays):
            stacks = layout.stack(leaves) if needs_params else layout.zeros()
            return make_state(layout, stacks, arrays)

        mesh = visible_mesh(leaves)
        if mesh is None or not (_is_visible(mesh, leaves) or is_recording()):
            return make(leaves, arrays)
        plain = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype)
        shapes = jax.eval_shape(make, jax.tree.map(plain, leaves), arrays)
        specs = _state_specs(layout, leaves, mesh, shapes)
        shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)
        if AxisType.Explicit in mesh.axis_types:
            make = with_auto_axes(make, shardings)
        if is_recording():
            return note(make(leaves, arrays), specs)
        if isinstance(mesh, jax.sharding.Mesh):
            return jax.jit(make, out_shardings=shardings)(leaves, arrays)
        return make(leaves, arrays)

    def update(
        self,
        layout: Layout,
        step: Callable[[Layout, Any, Any, Any], Any],
        leaves: Mapping[str, Mapping[str, Any]],
        state: Any,
        arrays: Any,
    ) -> tuple[Mapping[str, Any], Any]:
        """Calls ``step(layout, leaves, state, arrays)`` wherever its arguments lie."""
        run = lambda *args: step(layout, *args)
        updates = leaves["updates"]
        mesh = visible_mesh(updates)
        if mesh is None or AxisType.Explicit not in mesh.axis_types:
            return run(leaves, state, arrays)
        of_type = lambda x: NamedSharding(mesh, PartitionSpec(*explicit_spec(x)))
        shardings = jax.tree.map(of_type, (updates, state))
        return with_auto_axes(run, shardings)(leaves, state, arrays)


def _is_visible(mesh: Any, leaves: Mapping[str, Any]) -> bool:
    """Whether specs on this mesh can be seen, not only the mesh."""
    if AxisType.Explicit in mesh.axis_types:
        return True
    return mesh.size > 1 and any(named_sharding(x) for x in leaves.values())


def _state_specs(layout: Layout, leaves: Mapping[str, Any], mesh: Any, state: Any):
    def of_leaf(keys, x):
        group = group_of(keys, layout.groups)
        if group is None or x.shape != group.shape:
            return PartitionSpec(*[None] * len(x.shape))
        path = group.members[0].path
        spec = visible_spec(path, leaves[path])
        axes = layout.views[path].spec_of_piece(spec)
        pairs = zip(axes, x.shape, strict=True)
        return PartitionSpec(*[a if _divides(mesh, a, n) else None for a, n in pairs])

    return jax.tree_util.tree_map_with_path(of_leaf, state)


def _divides(mesh: Any, axes: Any, size: int) -> bool:
    if axes is None:
        return True
    ways = 1
    for axis in axes if isinstance(axes, tuple) else (axes,):
        ways *= mesh.shape[axis]
    return size % ways == 0
