"""The placement in which every matrix lives whole on one device."""

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from optax_matrix.layout import resolve
from optax_matrix.layout.paths import named_leaves
from optax_matrix.layout.specs import named_sharding, note, visible_mesh
from optax_matrix.sharding._checks import check_axes, check_wire_dtype
from optax_matrix.sharding._owner_layout import OwnerLayout, owner_layout
from optax_matrix.sharding._param_specs import (
    given_mesh,
    given_specs,
    mesh_axes_of,
    spec_of_parameter,
)
from optax_matrix.sharding._run import (
    anchor,
    as_specified,
    check_names,
    on_every_device,
    own_part,
    specs_of_state,
)


@dataclasses.dataclass(frozen=True, eq=False)  # Specs are no keys.
class owners:
    r"""Gives every matrix, whole, to one device of the named mesh axes.

    A step sends each gradient to its owner (one ``all_to_all`` per group of equal
    leaves, over all axes that cut them), runs the whole chain there on local matrices,
    and sends the update back (another); parameters travel, too, for transformations
    that need them. Nothing is computed twice, and state stays with the owners. Of
    ``P`` bytes of gradients each of ``N`` devices sends ``2 P / N``, against ``2 P`` or
    more when the partitioner gathers matrices. A group of ``K`` matrices is filled up
    to the next multiple of ``N`` with zero matrices, which the chain sees as any other
    and nobody else sees.

    Mesh axes that shard a batch axis of a leaf (layers, experts) already hold whole
    matrices and cost nothing. Along owner axes that a leaf's spec does not name, every
    device works on its share, and an ``all_gather`` spreads the updates. Mesh axes that
    cut matrices and are not named stay inside the matrices, where the partitioner does
    what it does: fewer owners, if there are fewer matrices than devices.

    Call `update` under `jax.jit`: without, every call compiles.

    Args:
        mesh_axes: Name or names of the owner axes, major first.
        param_specs: Tree or prefix tree of `jax.sharding.PartitionSpec` or
            `jax.sharding.NamedSharding` for the parameters. Under Explicit axes the
            types decide and None will do; under Auto axes types show nothing, and it
            must cover every matrix.
        wire_dtype: ``jnp.bfloat16`` for gradients and updates to travel in it where it
            is narrower than their own dtype; None for their own. Parameters travel in
            theirs.

    Raises:
        ValueError: If an argument is out of range; at `init` and `update`, if there is
            no mesh with these axes or the spec of a matrix is missing or does not fit.

    Examples:
        >>> import jax, jax.numpy as jnp, numpy as np
        >>> from jax.sharding import NamedSharding, PartitionSpec as P
        >>> import optax_matrix as om
        >>> kinds = (jax.sharding.AxisType.Explicit,)
        >>> mesh = jax.make_mesh((1,), ("fsdp",), kinds, devices=jax.devices()[:1])
        >>> sharding = NamedSharding(mesh, P("fsdp", None))
        >>> params = {"kernel": jax.device_put(np.ones((4, 8), np.float32), sharding)}
        >>> tx = om.muon(0.02, placement=om.owners("fsdp"))
        >>> state = tx.init(params)
        >>> updates, state = jax.jit(tx.update)(params, state, params)
        >>> jax.typeof(updates["kernel"])
        ShapedArray(float32[4@fsdp,8])

    References:
        The round-robin ownership of ARO, Section 4.5, for every method.
    """

    mesh_axes: str | tuple[str, ...]
    _: dataclasses.KW_ONLY
    param_specs: Any = None
    wire_dtype: DTypeLike | None = None

    def __post_init__(self):
        check_axes(self.mesh_axes)
        check_wire_dtype(self.wire_dtype)
        given_specs(self.param_specs)

    @classmethod
    def from_params(
        cls,
        params: Any,
        mesh_axes: str | tuple[str, ...],
        *,
        wire_dtype: DTypeLike | None = None,
    ) -> "owners":
        """The same, with the specs that `params` have at this moment.

        Args:
            params: Sharded arrays, or `jax.ShapeDtypeStruct` that carry a sharding.
            mesh_axes: As above.
            wire_dtype: As above.

        Returns:
            The placement.

        Raises:
            ValueError: If a parameter has no named sharding.
        """
        shardings = {p: named_sharding(x) for p, x in named_leaves(params).items()}
        for path, sharding in shardings.items():
            if sharding is None:
                raise ValueError(
                    "`params` must lie on a mesh (jax.device_put with a NamedSharding),"
                    f" {path!r} does not; shard it, or pass owners(..., param_specs=)."
                )
        return cls(mesh_axes, param_specs=shardings, wire_dtype=wire_dtype)

    def layout(
        self, leaves: Any, dimension_numbers: Any, max_batch: int | None
    ) -> OwnerLayout:
        """Groups the matrix leaves and gives them to their owners."""
        resolved = resolve(dimension_numbers, leaves)
        named = named_leaves(leaves)
        matrices = {p: named[p] for p, r in resolved.items() if r.view is not None}
        given = given_specs(self.param_specs)
        mesh = visible_mesh(matrices) or given_mesh(given)
        axes = mesh_axes_of(mesh, self.mesh_axes) if matrices else ()
        return owner_layout(
            resolved,
            named,
            {p: spec_of_parameter(p, x, mesh, given) for p, x in matrices.items()},
            axes,
            mesh,
            wire_dtype=self.wire_dtype,
            max_batch=max_batch,
        )

    def init(
        self,
        layout: OwnerLayout,
        make_state: Callable[[Any, Any, Any], Any],
        leaves: Mapping[str, Any],
        arrays: Any,
        needs_params: bool,
    ) -> Any:
        """Calls ``make_state(layout, stacks, arrays)`` on every owner."""
        if not layout.groups:
            return make_state(layout, {}, arrays)
        self._check_lie(layout, leaves)
        make = lambda lay, arrays: make_state(lay, lay.zeros(), arrays)
        shapes = jax.eval_shape(partial(make, layout), arrays)
        local = jax.eval_shape(partial(make, layout.part()), arrays)
        check_names(layout, shapes, local)
        manual, full = specs_of_state(layout, shapes)

        def on_device(ids, leaves, arrays):
            own = {n: own_part(ids[n], g, leaves) for n, g in layout.groups.items()}
            local = layout.on_device(own)
            stacks = local.stack(leaves, exact=True) if needs_params else local.zeros()
            return make_state(local, stacks, arrays)

        if not needs_params:
            leaves = anchor(leaves)
        specs = {path: layout.moving_spec(path) for path in leaves}
        in_specs = (PartitionSpec(), specs, PartitionSpec())
        run = on_every_device(layout, on_device, in_specs, manual, full)
        return note(run(layout.ids, leaves, arrays), full)

    def update(
        self,
        layout: OwnerLayout,
        step: Callable[[Any, Any, Any, Any], Any],
        leaves: Mapping[str, Mapping[str, Any]],
        state: Any,
        arrays: Any,
    ) -> tuple[Mapping[str, Any], Any]:
        """Calls ``step(layout, leaves, state, arrays)`` on every owner."""
        if not layout.groups:
            return step(layout, leaves, state, arrays)

        def on_device(leaves, state, arrays):
            return step(layout.on_device(state.manifest), leaves, state, arrays)

        manual, full = specs_of_state(layout, state)
        moving = {path: layout.moving_spec(path) for path in layout.views}
        in_specs = ({name: moving for name in leaves}, manual, PartitionSpec())
        parameters = {path: layout.full_spec(path) for path in layout.views}
        bring = partial(as_specified, specs=parameters, mesh=layout.mesh)
        leaves = {name: bring(tree) for name, tree in leaves.items()}
        state = as_specified(state, full, layout.mesh)
        run = on_every_device(
            layout, on_device, in_specs, (moving, manual), (parameters, full)
        )
        return run(leaves, state, arrays)

    def _check_lie(self, layout: OwnerLayout, leaves: Mapping[str, Any]) -> None:
        """Raises if a concrete parameter is sharded otherwise than it was said."""
        for path, leaf in leaves.items():
            if (sharding := named_sharding(leaf)) is None:
                continue
            said = NamedSharding(sharding.mesh, layout.full_spec(path))
            if not sharding.is_equivalent_to(said, leaf.ndim):
                raise ValueError(
                    f"`param_specs` must say how parameters are sharded, but {path!r} "
                    f"lies as {sharding.spec} and not as {said.spec}; pass the specs "
                    "that it has (owners.from_params), or shard it so."
                )
