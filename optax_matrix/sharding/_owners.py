"""The placement in which every matrix lives whole on one device."""

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from optax_matrix.layout._as_sharded import with_auto_axes
from optax_matrix.layout._paths import key_name, named_leaves
from optax_matrix.layout._rules import resolve
from optax_matrix.layout._specs import (
    explicit_spec,
    named_sharding,
    note,
    own_mesh,
    visible_mesh,
)
from optax_matrix.sharding._checks import check_axes, check_wire_dtype
from optax_matrix.sharding._owner_layout import OwnerLayout, owner_layout
from optax_matrix.sharding._param_specs import (
    given_mesh,
    given_specs,
    mesh_axes_of,
    spec_of_parameter,
)


@dataclasses.dataclass(frozen=True)
class owners:
    r"""Gives every matrix, whole, to one device of the named mesh axes.

    A step sends each gradient to its owner (one ``all_to_all`` per group of equal
    leaves, over all axes that cut them), runs the whole chain there on local matrices,
    and sends the update back (another). Nothing else is communicated, nothing is
    computed twice, and state stays with the owners. Of ``P`` bytes of gradients each
    of ``N`` devices sends ``2 P / N``, against ``2 P`` or more when the partitioner
    gathers matrices; a group of ``K`` matrices is filled up with zeros to the next
    multiple of ``N``.

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
        wire_dtype: Dtype in which gradients and updates travel where it is narrower
            than their own, such as ``jnp.bfloat16``; None for their own.

    Raises:
        ValueError: If an argument is out of range; at `init` and `update`, if there is
            no mesh with these axes or the spec of a matrix is missing or does not fit.

    Examples:
        >>> import jax, jax.numpy as jnp, numpy as np
        >>> from jax.sharding import NamedSharding, PartitionSpec as P
        >>> import optax_matrix as om
        >>> mesh = jax.make_mesh((1,), ("fsdp",), devices=jax.devices()[:1])
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
        make = lambda arrays: make_state(layout, layout.zeros(), arrays)
        shapes = jax.eval_shape(make, arrays)
        manual, full = _state_specs(layout, shapes)

        def on_device(ids, leaves, arrays):
            own = {n: _own_part(ids[n], g, leaves) for n, g in layout.groups.items()}
            local = layout.on_device(own)
            stacks = local.stack(leaves) if needs_params else local.zeros()
            return make_state(local, stacks, arrays)

        if not needs_params:
            leaves = _anchor(leaves)
        specs = {path: layout.moving_spec(path) for path in leaves}
        ids = {name: group.ids for name, group in layout.groups.items()}
        in_specs = (PartitionSpec(), specs, PartitionSpec())
        run = _on_every_device(layout, on_device, in_specs, manual, full)
        return note(run(ids, leaves, arrays), full)

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

        manual, full = _state_specs(layout, state)
        moving = {path: layout.moving_spec(path) for path in layout.views}
        in_specs = ({name: moving for name in leaves}, manual, PartitionSpec())
        parameters = {path: layout.full_spec(path) for path in layout.views}
        leaves = {
            n: _as_parameters(tree, parameters, layout.mesh)
            for n, tree in leaves.items()
        }
        run = _on_every_device(
            layout, on_device, in_specs, (moving, manual), (parameters, full)
        )
        return run(leaves, state, arrays)


def _on_every_device(
    layout: OwnerLayout, f: Callable, in_specs: Any, out_specs: Any, full_specs: Any
) -> Callable:
    """`f` in one `shard_map`, manual over all axes that do not stay inside matrices."""
    mesh = layout.mesh
    made_auto = layout.inside and AxisType.Explicit in mesh.axis_types
    run = jax.shard_map(
        f,
        mesh=None if made_auto else mesh,  # Then it is the mesh of the context.
        in_specs=in_specs,
        out_specs=out_specs,
        axis_names=set(mesh.axis_names) - set(layout.inside),
        check_vma=False,
    )
    if not layout.inside:
        return jax.jit(run)
    # What is left to the partitioner comes back sharded as it should be.
    shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), full_specs)
    if made_auto:
        run = with_auto_axes(run, shardings)
        known = isinstance(mesh, jax.sharding.Mesh)  # Not while tracing.
        return jax.jit(run, out_shardings=shardings) if known else jax.jit(run)
    constrain = partial(jax.lax.with_sharding_constraint, shardings=shardings)
    return jax.jit(lambda *args: constrain(run(*args)))


def _as_parameters(leaves: Mapping[str, Any], specs: Any, mesh: Any) -> Any:
    """Gradients whose types show another sharding, brought to their parameters'."""
    kinds = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))

    def shown(axes):
        names = axes if isinstance(axes, tuple) else (axes,)
        return tuple(x for x in names if kinds.get(x) == AxisType.Explicit) or None

    def bring(leaf, spec):
        spec = PartitionSpec(*map(shown, spec))
        seen = explicit_spec(leaf)
        same = not seen or PartitionSpec(*seen) == spec
        return leaf if same else jax.sharding.reshard(leaf, NamedSharding(mesh, spec))

    return {path: bring(leaf, specs[path]) for path, leaf in leaves.items()}


def _anchor(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """One traced leaf on a mesh, if there is any.

    `jax.jit` of `init` drops arguments that nothing uses, and with them the devices.
    """
    is_traced = lambda x: isinstance(x, jax.core.Tracer) and own_mesh(x) is not None
    traced = [p for p, x in leaves.items() if is_traced(x)]
    return {p: leaves[p] for p in traced[:1]}


def _own_part(ids: Any, group: Any, leaves: Mapping[str, Any]) -> Any:
    """The rows of a group's identities that belong to this device."""
    axes = group.spec[0]
    count = len(ids) // jax.lax.axis_size(axes)
    start = jax.lax.axis_index(axes) * count
    for leaf in leaves.values():  # Of which it uses nothing but that it is there.
        start += leaf.ravel()[:0].sum().astype(start.dtype)
    return jax.lax.dynamic_slice_in_dim(jnp.asarray(ids), start, count)


def _state_specs(layout: OwnerLayout, state: Any) -> tuple[Any, Any]:
    """Specs of a state: per matrix under a group's name, else the same everywhere.

    Returns:
        The specs without and with the axes that stay inside the matrices.

    Raises:
        ValueError: If a leaf under a group's name is neither.
    """

    def of_leaf(inside, keys, x):
        names = [key_name(key) for key in keys]
        group = next((layout.groups[n] for n in names if n in layout.groups), None)
        if group is None or not x.shape:
            return PartitionSpec(*[None] * len(x.shape))
        if x.shape[0] != group.count:
            raise ValueError(
                f"State {'/'.join(names)!r} must be a scalar or have the "
                f"{group.count} matrices of its stack in front, got shape {x.shape}; "
                "placement by owners needs to know what belongs to which matrix."
            )
        rest = group.spec[1:] if inside and x.shape == group.shape else None
        return PartitionSpec(group.spec[0], *(rest or [None] * (len(x.shape) - 1)))

    of_tree = jax.tree_util.tree_map_with_path
    return tuple(of_tree(partial(of_leaf, inside), state) for inside in (False, True))
