"""The placement that gives every whole matrix to one device."""

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
from jax.sharding import PartitionSpec
from jax.typing import DTypeLike

from optax_matrix._mesh import check_reduced, unreduced_axes, visible_mesh
from optax_matrix._surroundings import within
from optax_matrix.sharding._checks import check_owners, with_one_axis_argument
from optax_matrix.sharding._memory import Memory, check_memory, fetched, stored
from optax_matrix.sharding._owner_layout import OwnerLayout, owner_layout
from optax_matrix.sharding._param_specs import (
    given_mesh,
    given_specs,
    mesh_axes_of,
    shardings_of,
    spec_of_parameter,
)
from optax_matrix.sharding._run import (
    anchor,
    as_specified,
    check_names,
    check_param_specs,
    on_every_device,
    own_part,
    specs_of_state,
    with_unreduced,
)
from optax_matrix.sharding._state_pools import pooled, with_slots
from optax_matrix.sharding._teams import in_team
from optax_matrix.stacks.placement import (
    Leaves,
    MakeState,
    Pairs,
    Placement,
    Sides,
    Step,
    Views,
)


@with_one_axis_argument
@dataclasses.dataclass(frozen=True, eq=False)  # Specs are not hashable.
class owners:
    r"""Gives every whole matrix to one device of the named mesh axes.

    A step sends each gradient to its owner by ``all_to_all`` over all axes that split
    it, runs the whole chain there on local matrices, and sends the update back by
    another ``all_to_all``. Parameters are sent as well if a transformation needs them.
    Nothing is computed twice, and state stays with the owners. Of ``P`` bytes of
    gradients each of ``N`` devices sends ``2 P / N``, compared with ``2 P`` or more if
    the partitioner gathers matrices. A group of ``K`` equal matrices is padded to the
    next multiple of ``N`` with zero matrices. The chain treats them like any others.
    After the full rounds, fewer than ``N`` matrices of a group are left. Those of
    several groups are sent together if their owners differ. Gradients that are
    ``unreduced`` along Explicit axes are added on the way to owners.

    Along mesh axes that shard a batch axis of a leaf (layers, experts), devices already
    hold whole matrices, and nothing is sent. Along owner axes that a leaf's spec does
    not name, every device works on its share, and an ``all_gather`` distributes the
    updates. Along other axes that no spec names (data-parallel slices of a pod), all
    devices do the same, and nothing is sent. Mesh axes that split matrices and are not
    named in `mesh_axes` stay inside the matrices, where the partitioner decides. There
    are fewer owners then, for models with fewer matrices than devices.

    Call `update` under `jax.jit`; otherwise every call compiles.

    Args:
        mesh_axes: Name or names of the owner axes, major first.
        param_specs: Tree or prefix tree of `jax.sharding.PartitionSpec` or
            `jax.sharding.NamedSharding` for the parameters. Under Explicit axes the
            types have the specs, and None is enough. Under Auto axes types do not show
            them, and `param_specs` must cover every matrix.
        wire_dtype: Dtype in which gradients and updates are sent where it is narrower
            than their own, such as ``jnp.bfloat16``; None for their own. Parameters are
            always sent in their own.
        pad_to: Pads each group to a multiple of this number of matrices, which the
            number of owners must divide; None for the number of owners. The shape,
            names and order of the state are then the same on every mesh whose owners
            divide it, as long as the specs name the same axes. A checkpoint of one
            mesh is restored on another as it is, without `to_portable`.
        teams: How many consecutive owners, a team, share the work on each matrix of the
            last round, in which there are fewer matrices than owners: 2, 4 or 8; 1 for
            no teams. `sharding.plan` prints what each number gives. It must divide the
            number of owners. If a shard has fewer owners, and these divide it, they are
            one team.
        memory: Where the state of matrices lies between steps: ``"device"``, or
            ``"pinned_host"`` for the memory of the host, as in `sharding.as_sharded`.
        pool_state: Whether groups whose last rounds have different owners share their
            state: each owner then keeps that of its one matrix, padded to the largest,
            in place of one for each group, until the next step. Steps are the same to
            rounding. No effect with `pad_to` or mesh axes that stay inside matrices.

    Note:
        Teams share only the polar factors that `orthogonalize` computes by
        `linalg.newton_schulz`, also as a `functools.partial`: each matrix is split
        along its long side. Matrices and state stay with their owners, so that all
        other blocks and kernels run as without teams; a method of those alone should
        keep 1. With another number matrices have another order: carry state over with
        `to_portable`. The number must be 1 with `pad_to`, and if mesh axes stay inside
        matrices.

    Raises:
        ValueError: If an argument is out of range; at `init` and `update`, if there is
            no mesh with these axes, or if the spec of a matrix is missing or wrong.

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
        The round-robin ownership of ARO, Section 4.5, here for every method.
    """

    mesh_axes: str | tuple[str, ...]
    _: dataclasses.KW_ONLY
    param_specs: Any = None
    wire_dtype: DTypeLike | None = None
    pad_to: int | None = None
    teams: int = 1
    memory: Memory = "device"
    pool_state: bool = False

    def __post_init__(self):
        options = self.wire_dtype, self.pad_to, self.teams, self.pool_state
        check_owners(self.mesh_axes, *options)
        check_memory(self.memory)
        given_specs(self.param_specs)

    @classmethod
    def from_params(
        cls,
        params: Any,
        mesh_axes: str | tuple[str, ...],
        *,
        wire_dtype: DTypeLike | None = None,
        pad_to: int | None = None,
        teams: int = 1,
        memory: Memory = "device",
        pool_state: bool = False,
    ) -> "owners":
        """Returns the placement with the present shardings of `params`.

        Args:
            params: Sharded arrays, or `jax.ShapeDtypeStruct` that carry a sharding.
            mesh_axes: As above.
            wire_dtype: As above.
            pad_to: As above.
            teams: As above.
            memory: As above.
            pool_state: As above.

        Returns:
            The placement.

        Raises:
            ValueError: If a parameter has no named sharding.
        """
        return cls(
            mesh_axes,
            param_specs=shardings_of(params),
            wire_dtype=wire_dtype,
            pad_to=pad_to,
            teams=teams,
            memory=memory,
            pool_state=pool_state,
        )

    def layout(
        self, leaves: Leaves, views: Views, max_batch: int | None, pairs: Pairs
    ) -> OwnerLayout:
        """See `Placement.layout`."""
        matrices = {path: leaves[path] for path in views}
        given = given_specs(self.param_specs)
        mesh = visible_mesh(matrices) or given_mesh(given)
        axes = mesh_axes_of(mesh, self.mesh_axes) if matrices else ()
        specs = {p: spec_of_parameter(p, x, mesh, given) for p, x in matrices.items()}
        return owner_layout(
            leaves,
            views,
            specs,
            axes,
            mesh,
            pairs=pairs,
            max_batch=max_batch,
            pad_to=self.pad_to,
            teams=self.teams,
            pool_state=self.pool_state,
        )

    def init(
        self,
        layout: OwnerLayout,
        make_state: MakeState,
        params: Leaves,
        arrays: Any,
        needs_params: bool,
    ) -> Any:
        """See `Placement.init`."""
        if not layout.groups:
            return make_state(layout, {}, arrays)
        check_param_specs(layout, params)
        make = lambda local, arrays: make_state(local, local.zeros(), arrays)
        make_pooled = partial(pooled, layout)
        whole = jax.eval_shape(partial(make, layout), arrays)
        part = jax.eval_shape(partial(make, layout.part()), arrays)
        check_names(layout, whole, part)
        manual, full = specs_of_state(layout, jax.eval_shape(make_pooled, whole))

        def on_device(rows, params, arrays):
            own = {n: own_part(rows[n], g, params) for n, g in layout.groups.items()}
            local = layout.on_device(own)
            stacks = local.stack(params) if needs_params else local.zeros()
            return pooled(local, make_state(local, stacks, arrays))

        if not needs_params:
            params = anchor(params)
        specs = {path: layout.manual_specs[path] for path in params}
        in_specs = (PartitionSpec(), specs, PartitionSpec())
        run = on_every_device(layout, on_device, in_specs, manual, full)
        return stored(self.memory, run(layout.manifest, params, arrays), layout.groups)

    def update(
        self,
        layout: OwnerLayout,
        step: Step,
        leaves: Mapping[str, Leaves],
        state: Any,
        arrays: Any,
        sides: Mapping[str, Sides],
        make_state: MakeState,
    ) -> tuple[Leaves, Any]:
        """See `Placement.update`."""
        if not layout.groups:
            stacks = {"params": {}, **{name: {} for name in leaves}}
            _, state = step(layout, stacks, state, arrays)
            return {}, state

        step = with_slots(layout, step, make_state)
        waiting = {p: unreduced_axes(x) for p, x in leaves["updates"].items()}
        if layout.inside:
            check_reduced(leaves["updates"])

        def on_device(leaves, state, arrays):
            local = layout.on_device(state.manifest)
            grads = leaves["updates"], None, self.wire_dtype, waiting
            stacks = {"updates": local.stack(*grads)}
            for name, tree in leaves.items():
                if name != "updates":  # Others are never rounded.
                    stacks[name] = local.stack(tree, sides.get(name))
            real = layout.real(state.manifest)
            rounds = layout.last_rounds(state.manifest)
            shared = {name: partial(in_team, last) for name, last in rounds.items()}
            # With axes inside matrices the partitioner decides where stacks are.
            limit = None if layout.inside else local.largest_batch
            with within(real=real, shared=shared, limit=limit, alone=False):
                new, state = step(local, stacks, state, arrays)
            return local.unstack(new, self.wire_dtype), state

        state = fetched(self.memory, state, layout.groups)
        manual, full = specs_of_state(layout, state)
        own, whole = layout.specs_of(leaves, sides)
        leaves, state = as_specified((leaves, state), (whole, full), layout.mesh)
        # Every device gets each extra argument whole; unused ones are not sent.
        arrays = as_specified(arrays, [PartitionSpec()] * len(arrays), layout.mesh)
        out_specs = (own["updates"], manual), (whole["updates"], full)
        summed = with_unreduced(leaves["updates"], own["updates"])
        in_specs = (own | {"updates": summed}, manual, PartitionSpec())
        run = on_every_device(layout, on_device, in_specs, *out_specs)
        leaves, state = run(leaves, state, arrays)
        return leaves, stored(self.memory, state, layout.groups)

    def specs(
        self,
        layout: OwnerLayout,
        state: Any,
        param_specs: Mapping[str, tuple],
        mesh: Any,
    ) -> Any:
        """See `Placement.specs`. The sharding of leaves has no effect on the state."""
        del param_specs, mesh
        return specs_of_state(layout, state)[1]


_: type[Placement[OwnerLayout]] = owners  # Checked by pyright.
