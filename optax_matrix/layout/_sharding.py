"""Running on sharded parameters where they are, in Auto and Explicit mode."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.core
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from optax_matrix.layout._paths import key_name


def explicit_spec(leaf: Any) -> tuple:
    """The leaf's partition spec if it is part of its type, else ``()``."""
    sharding = getattr(jax.typeof(leaf), "sharding", None)
    if sharding is None or AxisType.Explicit not in sharding.mesh.axis_types:
        return ()
    return tuple(sharding.spec)


class AsSharded:
    """The placement of ``placement=None``: parameters and state stay as they lie.

    Under Explicit axes, where contractions and decompositions of sharded matrices
    raise, the step runs with its axes made Auto and the types of its inputs given back
    to its outputs. Otherwise the partitioner decides. State of the stacks' shape is
    born with the sharding of its first leaf, as far as it can be seen.
    """

    def init(self, layout: Any, leaves: Mapping[str, Any], make_state: Callable) -> Any:
        """Calls ``make_state()`` and gives its leaves their sharding."""
        mesh = _visible_mesh(leaves)
        if mesh is None:
            return make_state()
        shardings = _state_shardings(layout, leaves, mesh, jax.eval_shape(make_state))
        if isinstance(mesh, jax.sharding.Mesh):
            return jax.jit(make_state, out_shardings=shardings)()
        return _with_auto_axes(make_state, shardings)()

    def update(
        self,
        layout: Any,
        step: Callable,
        updates: Mapping[str, Any],
        state: Any,
        arrays: Any,
    ) -> tuple[Mapping[str, Any], Any]:
        """Calls ``step(updates, state, arrays)`` wherever its arguments lie."""
        del layout
        mesh = _explicit_mesh(updates)
        if mesh is None:
            return step(updates, state, arrays)
        of_type = lambda x: NamedSharding(mesh, PartitionSpec(*explicit_spec(x)))
        shardings = jax.tree.map(of_type, (updates, state))
        return _with_auto_axes(step, shardings)(updates, state, arrays)


def _with_auto_axes(f: Callable, out_sharding: Any) -> Callable:
    run: Any = jax.sharding.auto_axes  # Its stub hides that it takes `f` first.
    return run(f, out_sharding=out_sharding)


def _concrete_sharding(leaf: Any) -> NamedSharding | None:
    concrete = isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer)
    sharding = leaf.sharding if concrete else None
    return sharding if isinstance(sharding, NamedSharding) else None


def _explicit_mesh(leaves: Mapping[str, Any]) -> Any:
    for leaf in leaves.values():
        sharding = getattr(jax.typeof(leaf), "sharding", None)
        if sharding is not None and AxisType.Explicit in sharding.mesh.axis_types:
            concrete = _concrete_sharding(leaf)
            return concrete.mesh if concrete else sharding.mesh
    return None


def _visible_mesh(leaves: Mapping[str, Any]) -> Any:
    for leaf in leaves.values():
        sharding = _concrete_sharding(leaf)
        if sharding is not None and sharding.num_devices > 1:
            return sharding.mesh
    return _explicit_mesh(leaves)


def _state_shardings(layout: Any, leaves: Mapping[str, Any], mesh: Any, state: Any):
    def of_leaf(keys, x):
        names = (key_name(key) for key in keys)
        group = next((layout.groups[n] for n in names if n in layout.groups), None)
        if group is None or x.shape != group.shape:
            return NamedSharding(mesh, PartitionSpec(*[None] * len(x.shape)))
        member = group.members[0]
        leaf = leaves[member.path]
        concrete = _concrete_sharding(leaf)
        spec = tuple(concrete.spec) if concrete else explicit_spec(leaf)
        axes = layout.views[member.path].spec_of_piece(spec)
        pairs = zip(axes, x.shape, strict=True)
        fits = [a if _divides(mesh, a, n) else None for a, n in pairs]
        return NamedSharding(mesh, PartitionSpec(*fits))

    return jax.tree_util.tree_map_with_path(of_leaf, state)


def _divides(mesh: Any, axes: Any, size: int) -> bool:
    if axes is None:
        return True
    ways = 1
    for axis in axes if isinstance(axes, tuple) else (axes,):
        ways *= mesh.shape[axis]
    return size % ways == 0
