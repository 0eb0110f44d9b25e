"""Switching: replacing part of a basis by random columns (Alice)."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from optax_matrix.linalg import Orthonormalize
from optax_matrix.linalg.complement import complement_columns, complement_subspace
from optax_matrix.linalg.random import normal

Switch = Literal["complement", "full_basis", "gaussian_mix", "gaussian", "none"]
Sampling = Literal["columns", "subspace"]


class Draw(NamedTuple):
    """Draws ``count`` columns orthogonal to the leading ones."""

    key: Any
    sampling: Sampling
    qr: Orthonormalize

    def __call__(self, ritz: jax.Array, leading: int, count: int) -> jax.Array:
        key, sampling, qr = self
        if sampling == "columns":
            return complement_columns(ritz, count, key, leading=leading)
        return complement_subspace(ritz[..., :leading], count, key, qr=qr)


def _none(ritz: jax.Array, leading: int, draw: Draw) -> jax.Array:
    del leading, draw
    return ritz


def _complement(ritz: jax.Array, leading: int, draw: Draw) -> jax.Array:
    m, r = ritz.shape[-2:]
    fresh = min(r - leading, m - r)
    if not fresh:
        return ritz
    drawn = draw(ritz, r, fresh)
    return jnp.concatenate([ritz[..., : r - fresh], drawn], axis=-1)


def _full_basis(ritz: jax.Array, leading: int, draw: Draw) -> jax.Array:
    r = ritz.shape[-1]
    if r == leading:
        return ritz
    drawn = draw(ritz, leading, r - leading)
    return jnp.concatenate([ritz[..., :leading], drawn], axis=-1)


def _gaussian_mix(ritz: jax.Array, leading: int, draw: Draw) -> jax.Array:
    fresh = _unit_columns(ritz, draw.key)[..., leading:]
    return jnp.concatenate([ritz[..., :leading], fresh], axis=-1)


def _gaussian(ritz: jax.Array, leading: int, draw: Draw) -> jax.Array:
    del leading
    return _unit_columns(ritz, draw.key)


# Functions from the Ritz vectors and the number of leading ones to the basis.
SWITCHES: dict[Switch, Callable[[jax.Array, int, Draw], jax.Array]] = {
    "complement": _complement,
    "full_basis": _full_basis,
    "gaussian_mix": _gaussian_mix,
    "gaussian": _gaussian,
    "none": _none,
}


def _unit_columns(like: jax.Array, key: Any) -> jax.Array:
    m, n = like.shape[-2:]
    x = normal(key, like.shape[:-2], m, n, like.dtype)
    return x / jnp.linalg.norm(x, axis=-2, keepdims=True)
