"""How arrays are sharded, as far as types, arrays or given specs show it."""

import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.core
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jaxtyping import Array


def explicit_spec(leaf: Any) -> tuple:
    """The leaf's partition spec if it is part of its type, else ``()``."""
    sharding = getattr(jax.typeof(leaf), "sharding", None)
    if sharding is None or AxisType.Explicit not in sharding.mesh.axis_types:
        return ()
    return tuple(sharding.spec)


def named_sharding(leaf: Any) -> NamedSharding | None:
    """The sharding of a concrete array or of a shape that carries one."""
    if isinstance(leaf, jax.core.Tracer):
        return None
    sharding = getattr(leaf, "sharding", None)
    return sharding if isinstance(sharding, NamedSharding) else None


def visible_spec(path: str, leaf: Any) -> tuple:
    """The leaf's spec: the one given to `recording`, its sharding's, or its type's."""
    recorder = _RECORDER.get()
    if recorder is not None:
        return recorder.specs.get(path, ())
    sharding = named_sharding(leaf)
    return tuple(sharding.spec) if sharding else explicit_spec(leaf)


def visible_mesh(leaves: Mapping[str, Any]) -> Any:
    """The mesh of the leaves, concrete where possible; None if there is none."""
    for leaf in leaves.values():
        if sharding := named_sharding(leaf):
            return sharding.mesh
    return next(filter(None, map(own_mesh, leaves.values())), None)


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


def own_mesh(leaf: Any) -> Any:
    """The mesh in the leaf's type; None if there is none."""
    sharding = getattr(jax.typeof(leaf), "sharding", None)
    return sharding.mesh if sharding is not None and sharding.mesh.axis_names else None


def with_auto_axes(f: Callable, out_sharding: Any) -> Callable:
    """`jax.sharding.auto_axes`, with `f` first, which its type stub does not allow."""
    run: Any = jax.sharding.auto_axes
    return run(f, out_sharding=out_sharding)


def keep_sharding(f: Callable[..., Array], leaf: Any, *args: Any) -> Array:
    """``f(leaf, *args)``, of the leaf's shape, with the sharding of the leaf's type."""
    mesh = own_mesh(leaf)
    if mesh is None or AxisType.Explicit not in mesh.axis_types:
        return f(leaf, *args)
    sharding = NamedSharding(mesh, PartitionSpec(*explicit_spec(leaf)))
    return with_auto_axes(f, sharding)(leaf, *args)


@dataclasses.dataclass
class _Recorder:
    specs: Mapping[str, tuple]
    noted: list[tuple[Any, PartitionSpec]]


_RECORDER: contextvars.ContextVar[_Recorder | None] = contextvars.ContextVar(
    "recorder", default=None
)


@contextlib.contextmanager
def recording(specs: Mapping[str, tuple]) -> Iterator[list[tuple[Any, PartitionSpec]]]:
    """Collects the specs of the state that `on_matrices` makes in this context.

    Types do not show the specs of Auto axes, so a trace alone would not reveal them.

    Args:
        specs: Partition spec of each parameter, by path.

    Yields:
        A list that fills with pairs of a state leaf and its spec.
    """
    recorder = _Recorder(specs, [])
    token = _RECORDER.set(recorder)
    try:
        yield recorder.noted
    finally:
        _RECORDER.reset(token)


def is_recording() -> bool:
    """Whether the specs of state are being collected."""
    return _RECORDER.get() is not None


def note(state: Any, specs: Any) -> Any:
    """Passes the specs of a state to `recording`; returns the state."""
    recorder = _RECORDER.get()
    if recorder is not None:
        pairs = zip(jax.tree.leaves(state), jax.tree.leaves(specs), strict=True)
        recorder.noted.extend(pairs)
    return state
