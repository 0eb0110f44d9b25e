"""The collectives of an exchange, on the chunks of one device.

All of this runs inside the ``shard_map`` of `owners`.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from optax_matrix.sharding._exchange import Exchange


def here(exchange: Exchange) -> tuple[Any, Any]:
    """The replica of this device, and its place in it."""
    axes = exchange.replicated_axes, exchange.split_axes
    replica, place = (jax.lax.axis_index(x) if x else 0 for x in axes)
    return replica, place


def all_to_all(exchange: Exchange, x: Array) -> Array:
    """The chunks from all devices that split matrices, for those that go to them."""
    # One collective over all axes that split matrices. With sharding constraints the
    # partitioner would gather all matrices on every device if two axes changed in one
    # constraint; a constraint for each axis would move everything twice.
    if not exchange.split_axes:
        return x
    return jax.lax.all_to_all(x, exchange.split_axes, 0, 0, tiled=True)


def all_to_all_flat(exchange: Exchange, x: Array) -> Array:
    """The same of flat chunks ``(places, numbers)``."""
    # In rows as wide as a tile of a TPU if possible: there, a single row would be
    # copied into a layout of its own.
    width = x.shape[1] if x.shape[1] % 128 else 128
    rows = x.reshape(len(x), -1, width)
    return all_to_all(exchange, rows).reshape(x.shape)


def gathered(exchange: Exchange, x: Array, real: np.ndarray) -> Array:
    """The chunks of the owners of all replicas ``(owners, matrices, *part)``."""
    (places, count), part = x.shape[:2], x.shape[2:]
    replicas = exchange.places[0]
    if not count:
        return jnp.zeros((replicas * places, 0, *part), x.dtype)
    real = np.broadcast_to(real, (replicas, places * count))
    x = all_gather(exchange, x.reshape(-1, *part), real)
    return x.reshape(-1, count, *part)


def all_gather(exchange: Exchange, x: Array, real: np.ndarray) -> Array:
    """The shares of all replicas; the values of padding are arbitrary.

    `real` says of each share what is no padding: ``(replicas, matrices)``.
    """
    if not exchange.replicated_axes:
        return x
    axes, count = exchange.replicated_axes, most(real)
    gather = functools.partial(jax.lax.all_gather, axis_name=axes, tiled=True)
    if count == len(x):
        return gather(x)
    # There is padding between real matrices. Each replica moves its padding to the end,
    # and sends as many matrices as the fullest share has.
    order = np.argsort(~real, axis=1, kind="stable")
    own = jnp.asarray(order)[jax.lax.axis_index(axes), :count]
    places = np.minimum(np.argsort(order, axis=1), count - 1)
    places += count * np.arange(len(order))[:, None]
    return gather(x[own])[places.ravel()]


def most(real: np.ndarray) -> int:
    """The number of matrices of the fullest share."""
    return int(real.sum(axis=1).max())
