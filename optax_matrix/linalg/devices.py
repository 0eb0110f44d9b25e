"""What the devices in use can do, as far as a trace shows it."""

import functools
import re
from typing import Any

import jax

# CUDA devices of compute capability 7.5 and below, which have neither TF32 nor fast
# bfloat16. Names, since those are all that the mesh in a type shows.
_OLD = re.compile(
    r"Tesla|TITAN|Quadro|GTX|GeForce (RTX 20|MX[1-4])|NVIDIA T\d+\b|\b[KMPV]\d+\b"
)
_FIRST_WITH_TF32 = 8.0


def has_narrow_products(x: jax.Array) -> bool:
    """Whether no device of an array is known to be a CUDA device before 8.0.

    The devices are those of the mesh in the array's type, else the default ones. Other
    devices have no say: a program for them has no branch for CUDA.
    """
    mesh = jax.typeof(x).sharding.mesh
    known = getattr(mesh, "abstract_device", None)
    devices = [known] if known is not None else jax.local_devices()
    return not any(map(_is_old, devices))


def _is_old(device: Any) -> bool:
    capability = getattr(device, "compute_capability", None)
    return _is_old_kind(device.device_kind, capability)


@functools.lru_cache
def _is_old_kind(kind: str, capability: str | None) -> bool:
    if capability is not None and re.fullmatch(r"\d+\.\d+", capability):
        return float(capability) < _FIRST_WITH_TF32
    return bool(_OLD.search(kind))
