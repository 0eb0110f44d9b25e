"""How arrays are sharded, as far as types, arrays or given specs show it."""

import contextlib
import contextvars
import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jaxtyping import Array


def vary_like(tree: Any, like: Any) -> Any:
    """Marks arrays as varying over the mesh axes that others vary over; values stay.

    Inside `jax.shard_map` JAX checks the axes over which values vary. A constant varies
    over none, so JAX refuses a loop that starts from constants and continues with data.
    Outside of `jax.shard_map` this does nothing.
    """
    if not jax.sharding.get_abstract_mesh().manual_axes:
        return tree
    # A sum: derivatives can be transposed only if `like` enters linearly.
    marks = [jnp.sum(_numbers(x), dtype=jnp.float32) for x in jax.tree.leaves(like)]
    mark = sum(marks, jnp.zeros((), jnp.float32))

    def varying(x: Array) -> Array:
        y = _numbers(x)
        y = jnp.where(False, mark.astype(y.dtype), y)
        if y.dtype == x.dtype:
            return y
        return jax.random.wrap_key_data(y, impl=jax.random.key_impl(x))

    return jax.tree.map(varying, tree)


def _numbers(x: Array) -> Array:
    """An array, or the numbers in an array of keys."""
    is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(x) if is_key else x


def explicit_spec(leaf: Any) -> tuple:
    """The leaf's partition spec if it is part of its type, else ``()``."""
    sharding = getattr(jax.typeof(leaf), "sharding", None)
    if sharding is None or AxisType.Explicit not in sharding.mesh.axis_types:
        return ()
    return _entries(sharding.spec)


def unreduced_axes(leaf: Any) -> tuple[str, ...]:
    """The mesh axes along which the leaf is a sum that is not computed yet."""
    sharding = getattr(jax.typeof(leaf), "sharding", None)
    return () if sharding is None else tuple(sorted(sharding.spec.unreduced))


def _entries(spec: PartitionSpec) -> tuple:
    """The entries of a spec; JAX refuses to iterate over one with unreduced axes."""
    if not spec.unreduced:
        return tuple(spec)
    if hasattr(spec, "partitions"):
        return tuple(spec.partitions)
    return tuple(spec.update(unreduced=frozenset()))


def named_sharding(leaf: Any) -> NamedSharding | None:
    """The sharding of a concrete array or of a shape that carries one."""
    if isinstance(leaf, jax.core.Tracer):
        return None
    sharding = getattr(leaf, "sharding", None)
    return sharding if isinstance(sharding, NamedSharding) else None


def visible_spec(leaf: Any) -> tuple:
    """The leaf's spec: that of its sharding, or of its type."""
    sharding = named_sharding(leaf)
    return tuple(sharding.spec) if sharding else explicit_spec(leaf)


def visible_mesh(leaves: Mapping[str, Any]) -> Any:
    """The mesh of the leaves, concrete where possible; None if there is none."""
    for leaf in leaves.values():
        if sharding := named_sharding(leaf):
            return sharding.mesh
    return next(filter(None, map(own_mesh, leaves.values())), None)


def trimmed(spec: PartitionSpec) -> PartitionSpec:
    """The spec in the form that compiled functions return, so that calls are cached."""
    entries = list(spec)
    while entries and entries[-1] is None:
        entries.pop()
    return PartitionSpec(*entries)


def shards(spec: Iterable[Any], sizes: Mapping[str, int]) -> int:
    """Into how many shards a spec splits an array, by the sizes of mesh axes."""
    entries = [x if isinstance(x, tuple) else (x,) for x in spec if x is not None]
    return math.prod([sizes.get(name, 1) for entry in entries for name in entry])


def context_mesh() -> Any:
    """The mesh of `jax.set_mesh`; None if there is none."""
    mesh = jax.sharding.get_abstract_mesh()
    return mesh if mesh is not None and mesh.axis_names else None


def check_one_mesh(leaves: Mapping[str, Any]) -> None:
    """Raises if arrays, by path, are on meshes of different devices."""
    devices = {p: s.device_set for p, x in leaves.items() if (s := named_sharding(x))}
    first = next(iter(devices), None)
    for path, found in devices.items():
        if first is not None and found != devices[first]:
            raise ValueError(
                f"`params` must be on one mesh, but {first!r} is on devices "
                f"{sorted(d.id for d in devices[first])} and {path!r} on "
                f"{sorted(d.id for d in found)}; make one optimizer for each pipeline "
                "stage, or put the stages on one axis of a mesh of all devices."
            )


def check_reduced(updates: Mapping[str, Any]) -> None:
    """Raises if a gradient, given by path, is unreduced along mesh axes."""
    for path, leaf in updates.items():
        if axes := unreduced_axes(leaf):
            raise ValueError(
                f"`updates` must be reduced, but the gradient of {path!r} is "
                f"`unreduced` along {axes}: call jax.sharding.reshard(gradient, spec) "
                "with the spec of the parameter, or leave `unreduced` out of the "
                "out_sharding of the product that makes it. Gradients of matrices may "
                "be unreduced with placement=om.owners(...) on all axes that split "
                "them."
            )


def own_mesh(leaf: Any) -> Any:
    """The mesh in the leaf's type; None if there is none."""
    sharding = getattr(jax.typeof(leaf), "sharding", None)
    return sharding.mesh if sharding is not None and sharding.mesh.axis_names else None


def has_auto_axes(x: Any) -> bool:
    """Whether a traced array is on a mesh whose axes are all Auto."""
    mesh = own_mesh(x) if isinstance(x, jax.core.Tracer) else None
    return mesh is not None and set(mesh.axis_types) == {AxisType.Auto}


def unsplit(x: Array, axes: int = 1) -> Array:
    """The array, with its last ``axes`` axes not sharded over Auto axes of a mesh.

    XLA cannot partition ``x[..., indices, :]`` if columns of x and the indices are
    split over the same mesh axis: "Slice dim size greater than dynamic slice
    dimension". XLA also crashes when a block is cut whose sides do not divide those of
    the shards.
    """
    if not has_auto_axes(x):
        return x
    free = [PartitionSpec.UNCONSTRAINED] * (x.ndim - axes)
    sharding = NamedSharding(own_mesh(x), PartitionSpec(*free, *[None] * axes))
    return jax.lax.with_sharding_constraint(x, sharding)


def with_auto_axes(f: Callable, out_sharding: Any) -> Callable:
    """`f`, run without Explicit axes, and with these axes in its results' shardings.

    Other axes of the mesh may be Auto, or Manual inside of `jax.shard_map`.
    """
    meshes = [sharding.mesh for sharding in jax.tree.leaves(out_sharding)]
    if not meshes:
        return f
    shown = lambda s: NamedSharding(meshes[0], explicit_part(s.spec, meshes[0]))
    run: Any = jax.sharding.auto_axes  # Its stub does not allow `f` first.
    shardings = jax.tree.map(shown, out_sharding)
    return run(f, axes=explicit_axes(meshes[0]), out_sharding=shardings)


def explicit_axes(mesh: Any) -> tuple[str, ...]:
    """The names of the axes that types show."""
    kinds = zip(mesh.axis_names, mesh.axis_types, strict=True)
    return tuple(name for name, kind in kinds if kind == AxisType.Explicit)


def explicit_part(spec: Iterable[Any], mesh: Any) -> PartitionSpec:
    """The part of a spec that types show: its Explicit axes."""
    entries = (x if isinstance(x, tuple) else (x,) for x in spec)
    names = [tuple(x for x in e if x in explicit_axes(mesh)) for e in entries]
    return PartitionSpec(*(x or None for x in names))


def keep_sharding(f: Callable[..., Array], leaf: Any, *args: Any) -> Array:
    """``f(leaf, *args)``, of the leaf's shape, with the leaf's sharding.

    The sharding is that of the leaf's type, and outside of `jax.jit` that of the array.
    """
    mesh = own_mesh(leaf)
    if mesh is not None and AxisType.Explicit in mesh.axis_types:
        f = with_auto_axes(f, NamedSharding(mesh, PartitionSpec(*explicit_spec(leaf))))
    new, sharding = f(leaf, *args), named_sharding(leaf)
    if sharding is None or isinstance(new, jax.core.Tracer):
        return new
    return jax.device_put(new, sharding)


def without_axes(f: Callable, axes: Iterable[int], leaf: Any) -> Callable:
    """`f`, whose values have the leaf's type without some of its axes.

    JAX cannot batch a branch over arrays with Explicit axes, so `f` runs without them.
    """
    mesh = own_mesh(leaf)
    if mesh is None or AxisType.Explicit not in mesh.axis_types:
        return f
    rest = [x for i, x in enumerate(explicit_spec(leaf)) if i not in axes]
    return with_auto_axes(f, NamedSharding(mesh, PartitionSpec(*rest)))


@dataclasses.dataclass
class Recorder:
    """Collects the specs of the state that `on_matrices` returns.

    Types do not show the specs of Auto axes, so a trace alone would not reveal them.

    Attributes:
        specs: Partition spec of each parameter, by path.
        mesh: The mesh; None if it is unknown.
        noted: Pairs of a state leaf and its spec.
        layouts: Each layout, with the dtype that its placement sends in, or None.
    """

    specs: Mapping[str, tuple]
    mesh: Any
    noted: list[tuple[Any, PartitionSpec]] = dataclasses.field(default_factory=list)
    layouts: list[tuple[Any, Any]] = dataclasses.field(default_factory=list)

    def note(self, state: Any, specs: Any) -> None:
        """Adds the specs of a state."""
        pairs = zip(jax.tree.leaves(state), jax.tree.leaves(specs), strict=True)
        self.noted.extend(pairs)


# A context variable, since what is recorded is deep in a user's `tx.init`, to which
# nothing but the parameters can be passed.
_RECORDER: contextvars.ContextVar[Recorder | None] = contextvars.ContextVar(
    "recorder", default=None
)


@contextlib.contextmanager
def recording(recorder: Recorder) -> Iterator[Recorder]:
    """Within this context `on_matrices` notes its specs in this recorder."""
    token = _RECORDER.set(recorder)
    try:
        yield recorder
    finally:
        _RECORDER.reset(token)


def recorder() -> Recorder | None:
    """The recorder of this context, if there is one."""
    return _RECORDER.get()
