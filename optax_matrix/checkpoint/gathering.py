"""Arrays of many devices on the host of every process, a piece at a time.

A process reads only arrays on its own devices, so devices send their parts to each
other first, a few rows of each part at a time: no device holds more of the array than
one piece.
"""

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec as P

from optax_matrix._thresholds import Thresholds


def spread(like: jax.Array, fill: Callable[[Any], np.ndarray]) -> jax.Array:
    """An array in the place of another one, from a function of indices to parts.

    Each process fills what its own devices hold. Nothing is sent between devices.
    """
    sharding: Any = like.sharding
    in_host = sharding.memory_kind == "pinned_host"
    if in_host:  # The type of an array that is made there does not say so.
        sharding = sharding.with_memory_kind(None)
    new = jax.make_array_from_callback(like.shape, sharding, fill)
    return jax.device_put(new, jax.memory.Space.Host) if in_host else new


class Pieces(NamedTuple):
    """How an array is gathered: rows along the longest axis of a device's part.

    Attributes:
        axis: The axis.
        length: Its length in the part of one device.
        rows: Rows of a part in one piece.
        nbytes: Bytes of a piece, which every device holds.
    """

    axis: int
    length: int
    rows: int
    nbytes: int

    def starts(self) -> Iterator[int]:
        """The first row of each piece; the last one may repeat rows."""
        for start in range(0, self.length, self.rows):
            yield min(start, self.length - self.rows)


def on_host(x: Any) -> np.ndarray:
    """The array on the host.

    All processes must call this for an array of which others hold parts.
    """
    far = isinstance(x, jax.Array) and not x.is_fully_addressable
    if not far or x.is_fully_replicated:
        return np.asarray(x)
    if not isinstance(x.sharding, NamedSharding):
        return np.asarray(multihost_utils.process_allgather(x, tiled=True))
    return gathered(x)


def gathered(x: Any, limit: int | None = None) -> np.ndarray:
    """An array with a `NamedSharding`, through pieces of at most `limit` bytes.

    A piece has at least one row of each part, however long a row is.
    """
    kind = x.sharding.mesh.devices.flat[0].default_memory().kind
    sharding = x.sharding.with_memory_kind(kind)
    x = jax.device_put(x, sharding)  # Offloaded state comes back for this.
    limit = limit or Thresholds.gathered_bytes
    plan = pieces(x.shape, x.dtype, sharding, limit)
    places = sharding.devices_indices_map(x.shape)
    parts = [places[device] for device in _holders(sharding)]
    host = np.empty(x.shape, x.dtype)
    for start in plan.starts():
        piece = _sent(x, start, plan.axis, plan.rows, sharding)
        some = slice(start, start + plan.rows)
        rows = *(slice(None),) * plan.axis, some
        for index, part in zip(parts, np.asarray(piece), strict=True):
            host[index][rows] = part
    return host


def pieces(shape: tuple, dtype: Any, sharding: NamedSharding, limit: int) -> Pieces:
    """How an array of this shape is gathered."""
    part = sharding.shard_shape(shape)
    axis = max(range(len(part)), key=part.__getitem__)
    holders = math.prod(sharding.mesh.shape[name] for name in _names(sharding))
    row = math.prod(part) // part[axis] * jnp.dtype(dtype).itemsize * holders
    rows = min(max(limit // row, 1), part[axis])
    return Pieces(axis, part[axis], rows, rows * row)


def _names(sharding):
    """The mesh axes that split an array, in the order of the mesh."""
    entries = [x if isinstance(x, tuple) else (x,) for x in sharding.spec]
    used = {name for entry in entries for name in entry}
    return tuple(name for name in sharding.mesh.axis_names if name in used)


def _holders(sharding):
    """A device for each part of an array, in the order of an all-gather."""
    names = sharding.mesh.axis_names
    first = [slice(None) if name in _names(sharding) else 0 for name in names]
    return sharding.mesh.devices[tuple(first)].ravel()


@functools.partial(jax.jit, static_argnums=(2, 3, 4))
def _sent(x, start, axis, rows, sharding):
    """Some rows of every part, on all devices: an array with an axis of parts ahead."""

    def send(part, start):
        some = jax.lax.dynamic_slice_in_dim(part, start, rows, axis)
        return jax.lax.all_gather(some, _names(sharding))

    specs = (sharding.spec, P())
    send = jax.shard_map(
        send, mesh=sharding.mesh, in_specs=specs, out_specs=P(), check_vma=False
    )
    return send(x, start)
