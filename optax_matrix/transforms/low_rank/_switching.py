"""Switching: replacing part of a basis by random columns (Alice)."""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp

from optax_matrix.linalg.complement import complement_columns, complement_subspace
from optax_matrix.linalg.random import normal

Switch = Literal["complement", "full_basis", "gaussian_mix", "gaussian", "none"]
Sampling = Literal["columns", "subspace"]


def _none(ritz, leading, key, sampling, qr):
    del leading, key, sampling, qr
    return ritz


def _complement(ritz, leading, key, sampling, qr):
    m, r = ritz.shape[-2:]
    fresh = min(r - leading, m - r)
    if not fresh:
        return ritz
    drawn = _draw(ritz, r, fresh, key, sampling, qr)
    return jnp.concatenate([ritz[..., : r - fresh], drawn], axis=-1)


def _full_basis(ritz, leading, key, sampling, qr):
    r = ritz.shape[-1]
    if r == leading:
        return ritz
    drawn = _draw(ritz, leading, r - leading, key, sampling, qr)
    return jnp.concatenate([ritz[..., :leading], drawn], axis=-1)


def _gaussian_mix(ritz, leading, key, sampling, qr):
    del sampling, qr
    return jnp.concatenate(
        [ritz[..., :leading], _unit_columns(ritz, key)[..., leading:]], axis=-1
    )


def _gaussian(ritz, leading, key, sampling, qr):
    del leading, sampling, qr
    return _unit_columns(ritz, key)


# Functions from (ritz, leading, key, sampling, qr) to the basis.
SWITCHES: dict[Switch, Callable[..., jax.Array]] = {
    "complement": _complement,
    "full_basis": _full_basis,
    "gaussian_mix": _gaussian_mix,
    "gaussian": _gaussian,
    "none": _none,
}


def _draw(ritz, leading, count, key, sampling, qr) -> jax.Array:
    """Draws ``count`` columns orthogonal to the leading ones."""
    if sampling == "columns":
        return complement_columns(ritz, count, key, leading=leading)
    return complement_subspace(ritz[..., :leading], count, key, qr=qr)


def _unit_columns(like: jax.Array, key: Any) -> jax.Array:
    m, n = like.shape[-2:]
    x = normal(key, like.shape[:-2], m, n, like.dtype)
    return x / jnp.linalg.norm(x, axis=-2, keepdims=True)
