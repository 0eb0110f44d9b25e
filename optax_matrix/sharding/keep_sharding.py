"""The default placement: arrays keep their sharding, in Auto and Explicit mode."""

from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from optax_matrix._mesh import (
    explicit_spec,
    named_sharding,
    trimmed,
    vary_like,
    visible_mesh,
    visible_spec,
    with_auto_axes,
)
from optax_matrix._surroundings import within
from optax_matrix._thresholds import Thresholds
from optax_matrix.linalg.devices import is_on_one_device
from optax_matrix.sharding._auto_axes import keep_small_whole, spread
from optax_matrix.sharding._stack_specs import stack_specs
from optax_matrix.stacks.layout import Layout, group_matrices
from optax_matrix.stacks.placement import Leaves, MakeState, Step, Views


class KeepSharding:
    """The `Placement` of ``placement=None``: parameters and state stay where they are.

    Under Auto axes, the partitioner decides what each device computes; state of a
    compiled `init` is sharded like its stack. Under Explicit
    axes, where contractions and decompositions of sharded matrices raise, the step runs
    with its axes made Auto, and its outputs get the types of its inputs. State of a
    stack starts with the sharding of the stack's first leaf, as far as that is visible.
    """

    wire_dtype = None

    def layout(self, leaves: Leaves, views: Views, max_batch: int | None) -> Layout:
        """See `Placement.layout`."""
        return group_matrices(leaves, views, max_batch)

    def init(
        self,
        layout: Layout,
        make_state: MakeState,
        params: Leaves,
        arrays: Any,
        needs_params: bool,
    ) -> Any:
        """See `Placement.init`."""

        def make(params, arrays):
            stacks = layout.stack(params) if needs_params else layout.zeros()
            return vary_like(make_state(layout, stacks, arrays), params)

        mesh = visible_mesh(params)
        if mesh is None or not _is_visible(mesh, params):
            return spread(make(params, arrays), layout, params)
        plain = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype)
        shapes = jax.eval_shape(make, jax.tree.map(plain, params), arrays)
        known = {path: visible_spec(leaf) for path, leaf in params.items()}
        specs = self.specs(layout, shapes, known, mesh)
        explicit = AxisType.Explicit in mesh.axis_types
        # As a step returns them, so that it is compiled once.
        spelled = (lambda spec: spec) if explicit else trimmed
        shardings = jax.tree.map(lambda x: NamedSharding(mesh, spelled(x)), specs)
        if explicit:
            make = with_auto_axes(make, shardings)
        if isinstance(mesh, jax.sharding.Mesh):
            return jax.jit(make, out_shardings=shardings)(params, arrays)
        return make(params, arrays)

    def update(
        self,
        layout: Layout,
        step: Step,
        leaves: Mapping[str, Leaves],
        state: Any,
        arrays: Any,
    ) -> tuple[Leaves, Any]:
        """See `Placement.update`."""
        alone = all(map(is_on_one_device, leaves["updates"].values()))
        most = Thresholds.joined_elements
        few = lambda m, n: min(layout.largest_batch(m, n), most // (m * n))

        def run(leaves, state, arrays):
            stacks = {name: layout.stack(tree) for name, tree in leaves.items()}
            with within(limit=few if alone else None, alone=alone):
                new, state = step(layout, stacks, state, arrays)
            return layout.unstack(new), keep_small_whole(state, layout)

        updates = leaves["updates"]
        state = vary_like(state, leaves)
        mesh = visible_mesh(updates)
        if mesh is not None and AxisType.Explicit in mesh.axis_types:
            of_type = lambda x: NamedSharding(mesh, PartitionSpec(*explicit_spec(x)))
            run = with_auto_axes(run, jax.tree.map(of_type, (updates, state)))
        return run(leaves, state, arrays)

    def specs(
        self, layout: Layout, state: Any, param_specs: Mapping[str, tuple], mesh: Any
    ) -> Any:
        """See `Placement.specs`."""
        return stack_specs(layout, state, param_specs, mesh)


def _is_visible(mesh: Any, leaves: Leaves) -> bool:
    """Whether specs on this mesh can be seen, not only the mesh."""
    if AxisType.Explicit in mesh.axis_types:
        return True
    return mesh.size > 1 and any(named_sharding(x) for x in leaves.values())
