"""What the devices in use can do, as far as a trace shows it."""

import functools
import re
from typing import Any

import jax
from jax.sharding import AxisType
from jax.typing import ArrayLike

# CUDA devices of compute capability 7.5 and below, which have neither TF32 nor fast
# bfloat16. By name, since the mesh in a type shows nothing else.
_OLD = re.compile(
    r"Tesla|TITAN|Quadro|GTX|GeForce (RTX 20|MX[1-4])|NVIDIA T\d+\b|\b[KMPV]\d+\b"
)
_FIRST_WITH_TF32 = 8.0
_HOPPER = re.compile(r"\bG?H(20|100|200|800)\b")
_HOPPER_CAPABILITY = 9.0


def has_narrow_products(x: jax.Array) -> bool:
    """Whether no device of an array is known to be a CUDA device before 8.0.

    The devices are those of the mesh in the array's type, else the default ones.
    Devices of other platforms do not matter: a program for them has no branch for CUDA.
    """
    return not any(map(_is_old, _devices(x)))


def are_hopper(x: jax.Array) -> bool:
    """Whether all devices of an array are known to be Hopper GPUs (9.0)."""
    return all(map(_is_hopper, _devices(x)))


def without_kernels(x: jax.Array) -> str | None:
    """Name of a device of an array that is known to have no kernel of our own."""
    has_none = lambda d: _is_cuda(d) or d.device_kind.startswith("TPU")
    others = [d for d in _devices(x) if has_none(d) and not _is_hopper(d)]
    return next((d.device_kind for d in others), None)


def processors(x: jax.Array, default: int) -> int:
    """The least number of multiprocessors of a GPU of an array, or a default."""
    names = ("num_cores", "core_count")  # Of what a mesh shows, and of a device.
    counts = [getattr(d, name, None) for d in _devices(x) for name in names]
    return min(filter(None, counts), default=default)


def is_on_one_device(x: ArrayLike) -> bool:
    """Whether no other device is known to be able to hold a part of an array.

    An array without a mesh may be on the mesh of `jax.set_mesh`. Shapes that are traced
    for more devices than this machine has must carry their shardings: a trace does not
    show the `in_shardings` of `jax.jit`.
    """
    mesh = jax.typeof(x).sharding.mesh
    mesh = jax.sharding.get_abstract_mesh() if mesh.empty else mesh
    if mesh.empty:
        return jax.device_count() == 1
    axes = zip(mesh.axis_sizes, mesh.axis_types, strict=True)
    return all(size == 1 or kind == AxisType.Manual for size, kind in axes)


def _devices(x: jax.Array) -> list[Any]:
    mesh = jax.typeof(x).sharding.mesh
    known = getattr(mesh, "abstract_device", None)
    return [known] if known is not None else jax.local_devices()


def _is_cuda(device: Any) -> bool:
    is_named = re.search("NVIDIA", device.device_kind)
    return bool(_capability(device) or is_named or _is_old(device))


def _is_old(device: Any) -> bool:
    return _is_old_kind(device.device_kind, _capability(device))


def _is_hopper(device: Any) -> bool:
    known = _capability(device)
    if known is not None:
        return known == _HOPPER_CAPABILITY
    return bool(_HOPPER.search(device.device_kind))


def _capability(device: Any) -> float | None:
    """The compute capability of a CUDA device, where it is shown."""
    text = str(getattr(device, "compute_capability", None))
    return float(text) if re.fullmatch(r"\d+\.\d+", text) else None


@functools.lru_cache
def _is_old_kind(kind: str, capability: float | None) -> bool:
    if capability is not None:
        return capability < _FIRST_WITH_TF32
    return bool(_OLD.search(kind))
