"""The default placement: arrays keep their sharding, in Auto and Explicit mode."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jaxtyping import Array

from optax_matrix._mesh import (
    check_reduced,
    explicit_spec,
    has_auto_axes,
    named_sharding,
    own_mesh,
    trimmed,
    vary_like,
    visible_mesh,
    visible_spec,
    with_auto_axes,
)
from optax_matrix._paths import group_of
from optax_matrix._surroundings import within
from optax_matrix._thresholds import Thresholds
from optax_matrix.linalg.devices import is_on_one_device
from optax_matrix.sharding._memory import Memory, check_memory, fetched, stored
from optax_matrix.sharding._stack_specs import is_sharded, stack_specs
from optax_matrix.stacks.layout import Layout, group_matrices
from optax_matrix.stacks.placement import (
    Leaves,
    MakeState,
    Pairs,
    Sides,
    Step,
    Views,
)


class KeepSharding:
    """The `Placement` of ``placement=None``: parameters and state stay where they are.

    Under Auto axes, the partitioner decides what each device computes; state of a
    compiled `init` is sharded like its stack. Under Explicit axes, contractions and
    decompositions of sharded matrices raise, so the step runs with Auto axes instead,
    and its outputs get the types of its inputs. State of a stack starts with the
    sharding of the stack's first leaf, as far as that is visible.
    """

    wire_dtype = None

    def __init__(self, memory: Memory = "device"):
        check_memory(memory)
        self.memory: Memory = memory

    def layout(
        self, leaves: Leaves, views: Views, max_batch: int | None, pairs: Pairs
    ) -> Layout:
        """See `Placement.layout`."""
        return group_matrices(leaves, views, max_batch, pairs)

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

        state = self._made(layout, make, params, arrays)
        return stored(self.memory, state, layout.groups)

    def _made(self, layout: Layout, make: Callable, params: Leaves, arrays: Any) -> Any:
        """The state of ``make(params, arrays)`` on its devices."""
        mesh = visible_mesh(params)
        if mesh is None or not _is_visible(mesh, params):
            return _spread(make(params, arrays), layout, params)
        plain = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype)
        shapes = jax.eval_shape(make, jax.tree.map(plain, params), arrays)
        known = {path: visible_spec(leaf) for path, leaf in params.items()}
        specs = self.specs(layout, shapes, known, mesh)
        explicit = AxisType.Explicit in mesh.axis_types
        # The shardings that a step returns, so that the step is compiled once.
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
        sides: Mapping[str, Sides],
        make_state: MakeState,
    ) -> tuple[Leaves, Any]:
        """See `Placement.update`. No state is made anew."""
        del make_state
        check_reduced(leaves["updates"])
        alone = all(map(is_on_one_device, leaves["updates"].values()))
        most = Thresholds.joined_elements
        few = lambda m, n: min(layout.largest_batch(m, n), most // (m * n))

        def run(leaves, state, arrays):
            stacks = {n: layout.stack(x, sides.get(n)) for n, x in leaves.items()}
            with within(limit=few if alone else None, alone=alone):
                new, state = step(layout, stacks, state, arrays)
            return layout.unstack(new), _keep_small_whole(state, layout)

        updates = leaves["updates"]
        state = vary_like(fetched(self.memory, state, layout.groups), leaves)
        mesh = visible_mesh(updates)
        if mesh is not None and AxisType.Explicit in mesh.axis_types:
            of_type = lambda x: NamedSharding(mesh, PartitionSpec(*explicit_spec(x)))
            run = with_auto_axes(run, jax.tree.map(of_type, (updates, state)))
        new, state = run(leaves, state, arrays)
        return new, stored(self.memory, state, layout.groups)

    def specs(
        self, layout: Layout, state: Any, param_specs: Mapping[str, tuple], mesh: Any
    ) -> Any:
        """See `Placement.specs`."""
        return stack_specs(layout, state, param_specs, mesh)


def as_sharded(*, memory: Memory = "device") -> KeepSharding:
    """The placement that leaves arrays as they are sharded, on one device as on many.

    With ``memory="device"`` it is that of ``placement=None``. With ``"pinned_host"``
    the state of matrices lies in the memory of the host between steps: `update` copies
    it to the devices and back, under `jax.jit` where XLA sees fit. Only arrays per
    matrix with at least as many numbers as a side move; counts stay. A CPU's two
    memories are the same RAM.

    `owners` has the same keyword, and `quantized` may be around either.

    Args:
        memory: ``"device"`` or ``"pinned_host"``.

    Returns:
        A placement for `on_matrices` and the recipes.

    Raises:
        ValueError: If ``memory`` is another word.

    Note:
        If you give ``out_shardings`` of the state to `jax.jit`, give them
        ``memory_kind="pinned_host"``, and restore a state by `from_portable`. Donate
        it only with the parameters: JAX (0.10) may hand the memory of a donated array
        of the host to a result of the same shape on the device, and abort.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> import optax_matrix as om
        >>> placement = om.sharding.as_sharded(memory="pinned_host")
        >>> tx, params = (
        ...     om.muon(0.02, placement=placement),
        ...     {"kernel": jnp.ones((4, 8))},
        ... )
        >>> updates, state = jax.jit(tx.update)(params, tx.init(params), params)
    """
    return KeepSharding(memory)


def _is_visible(mesh: Any, leaves: Leaves) -> bool:
    """Whether specs on this mesh can be seen, not only the mesh."""
    if AxisType.Explicit in mesh.axis_types:
        return True
    return mesh.size > 1 and any(named_sharding(x) for x in leaves.values())


def _spread(state: Any, layout: Layout, params: Leaves) -> Any:
    """A new state, with every large array sharded like its stack.

    Zeros depend on no input, so the compiler would put whole arrays on every device.
    """
    if not any(map(has_auto_axes, params.values())):
        return state
    stacks = layout.stack(params)

    def of_leaf(keys, x):
        group = group_of(keys, layout.groups)
        if group is None or not is_sharded(keys, x, group):
            return x
        like = _of_shape(stacks[group.name], x.shape)
        # Always false, but XLA does not fold it, so the result has `like`'s sharding.
        return jnp.where(like > jnp.inf, jnp.zeros((), x.dtype), x)

    return jax.tree_util.tree_map_with_path(of_leaf, state)


def _keep_small_whole(state: Any, layout: Layout) -> Any:
    """The state after a step, with small arrays and indices replicated.

    Otherwise the compiler would shard some of them, and the next step, like the first
    one after a restart, would have to be compiled again for other shardings.
    """
    known = next(filter(has_auto_axes, jax.tree.leaves(state)), None)
    if known is None:
        return state
    whole = NamedSharding(own_mesh(known), PartitionSpec())

    def of_leaf(keys, x):
        group = group_of(keys, layout.groups)
        if group is not None and is_sharded(keys, x, group):
            return x
        return jax.lax.with_sharding_constraint(x, whole)

    return jax.tree_util.tree_map_with_path(of_leaf, state)


def _of_shape(stack: Array, shape: tuple[int, ...]) -> Array:
    """An array of this shape, its axes sharded like the stack's axes of their size."""
    axes = {0: 0}  # From axes of the stack to axes of the shape.
    for axis, size in enumerate(shape[1:], 1):
        free = [i for i in (1, 2) if stack.shape[i] == size and i not in axes]
        axes |= {i: axis for i in free[:1]}
    rest = [i for i in range(stack.ndim) if i not in axes]
    values = jnp.max(stack, axis=rest)
    order = sorted(range(values.ndim), key=lambda i: axes[sorted(axes)[i]])
    return jax.lax.broadcast_in_dim(
        jnp.transpose(values, order), shape, sorted(axes.values())
    )
