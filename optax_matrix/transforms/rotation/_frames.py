"""Matrices in a rotated frame, and out of it."""

import jax
import jax.numpy as jnp

from optax_matrix.linalg.products import full_dot
from optax_matrix.linalg.scale import unit_peak
from optax_matrix.transforms.sides import Pair


def no_rotation(x: jax.Array) -> jax.Array:
    """The identity for the rows of matrices ``(..., p, q)``."""
    eye = jnp.eye(x.shape[-2], dtype=x.dtype)
    return jnp.broadcast_to(eye, (*x.shape[:-1], x.shape[-2]))


def into(x: jax.Array, rotation: Pair) -> jax.Array:
    """``R' x Q``: matrices as the base sees them."""
    rows, cols = rotation
    x = x if rows is None else full_dot(rows.mT, x)
    return x if cols is None else full_dot(x, cols)


def out_of(x: jax.Array, rotation: Pair) -> jax.Array:
    """``R x Q'``: back from there."""
    rows, cols = rotation
    x = x if rows is None else full_dot(rows, x.astype(rows.dtype))
    return x if cols is None else full_dot(x, cols.mT)


def without_noise(x: jax.Array, rotation: Pair, source: jax.Array) -> jax.Array:
    """Zero for entries that rotating left as rounding errors.

    A column that was only rotated has rounding errors in proportion to its norm, which
    is the one it had; with both sides rotated all entries have those of the largest.

    Args:
        x: Matrices in the rotated frame.
        rotation: The rotation.
        source: The matrices before they were rotated.
    """
    if rotation.rows is None:
        return x
    tolerance = 4 * jnp.finfo(x.dtype).eps * max(x.shape[-2:]) ** 0.5
    if rotation.cols is None:
        y, peak = unit_peak(jnp.asarray(source))
        size = jnp.sqrt(jnp.sum(y * y, axis=-2, keepdims=True))
    else:
        size, peak = 1.0, jnp.max(jnp.abs(x), axis=(-2, -1), keepdims=True)
    return jnp.where(jnp.abs(x) < tolerance * size * peak, 0, x)


def leading_square(spans: jax.Array | bool, x: jax.Array, rotation: Pair) -> jax.Array:
    """Zero outside the leading square, where a rotated momentum has only noise.

    A momentum of p rows and fewer columns, q, has q directions at most. If the leading
    columns of its rotation span them, the other rows are zero, but for rounding errors
    that grow with the condition number of the momentum.

    Args:
        spans: Whether leading columns of the rotation span these directions.
        x: Matrices in the rotated frame.
        rotation: The rotation.
    """
    p, q = x.shape[-2:]
    inside = jnp.arange(p)[:, None] < q
    if rotation.cols is not None:
        inside &= jnp.arange(q) < p
    elif rotation.rows is None or p <= q:
        return x
    return jnp.where(inside | jnp.logical_not(spans), x, 0)
