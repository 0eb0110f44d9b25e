"""Rotating matrices into a frame and back, without amplifying rounding noise."""

import jax
import jax.numpy as jnp

from optax_matrix.linalg.products import full_dot
from optax_matrix.linalg.scale import unit_peak
from optax_matrix.transforms.sides import Pair

SMALL = 16  # Longest side at which single entries count as noise.


def no_rotation(x: jax.Array) -> jax.Array:
    """Identity rotations for the rows of matrices ``(..., p, q)``."""
    eye = jnp.eye(x.shape[-2], dtype=x.dtype)
    return jnp.broadcast_to(eye, (*x.shape[:-1], x.shape[-2]))


def into(x: jax.Array, rotation: Pair) -> jax.Array:
    """Rotates matrices into the frame of the base: ``R' x Q``."""
    rows, cols = rotation
    x = x if rows is None else full_dot(rows.mT, x)
    return x if cols is None else full_dot(x, cols)


def out_of(x: jax.Array, rotation: Pair) -> jax.Array:
    """Rotates matrices back to the frame of the parameters: ``R x Q'``."""
    rows, cols = rotation
    x = x if rows is None else full_dot(rows, x.astype(rows.dtype))
    return x if cols is None else full_dot(x, cols.mT)


def without_noise(x: jax.Array, rotation: Pair, source: jax.Array) -> jax.Array:
    """Sets what is nothing but rounding errors to zero: rows and columns.

    They belong to directions in which the matrices have no range. The rounding errors
    of a product R'x are proportional to the norms of the columns of x. If both sides
    rotate, the second product adds errors that are proportional to the norms of rows.
    Single small entries stay, for their signs are nearly always right, but not in small
    matrices: there rows of signs often differ in one entry only, and then ARO's rotated
    momentum has entries that are zero.

    Args:
        x: Matrices in the rotated frame.
        rotation: The rotation.
        source: The matrices before the rotation.

    Returns:
        The matrices without these rows and entries, and columns if they rotate.
    """
    if rotation.rows is None:
        return x
    y, peak = unit_peak(jnp.asarray(source))
    size = jnp.sqrt(jnp.sum(y * y, axis=-2, keepdims=True))
    if rotation.cols is not None:
        rows = jnp.sqrt(jnp.sum(y * y, axis=-1, keepdims=True))
        size = jnp.maximum(_largest(size), _largest(rows))
    noise = 4 * jnp.finfo(x.dtype).eps * max(x.shape[-2:]) ** 0.5 * size * peak
    heard = ~(jnp.abs(x) < noise)
    live = jnp.any(heard, axis=-1, keepdims=True)
    if rotation.cols is not None:
        live &= jnp.any(heard, axis=-2, keepdims=True)
    if max(x.shape[-2:]) <= SMALL:
        live &= heard
    return jnp.where(live, x, 0)


def _largest(x: jax.Array) -> jax.Array:
    return jnp.max(x, axis=(-2, -1), keepdims=True)


def leading_square(spans: jax.Array | bool, x: jax.Array, rotation: Pair) -> jax.Array:
    """Sets a rotated momentum to zero outside its leading square, where it is noise.

    A momentum of p rows and fewer columns, q, has a range of at most q dimensions. If
    the leading columns of its rotation span that range, the other rows are zero, except
    for rounding errors that grow with the condition number of the momentum.

    Args:
        spans: Whether the leading columns of the rotation span the range.
        x: Matrices in the rotated frame.
        rotation: The rotation.

    Returns:
        The matrices without that noise.
    """
    p, q = x.shape[-2:]
    inside = jnp.arange(p)[:, None] < q
    if rotation.cols is not None:
        inside &= jnp.arange(q) < p
    elif rotation.rows is None or p <= q:
        return x
    return jnp.where(inside | jnp.logical_not(spans), x, 0)
