"""Latent attention: which part of its up-projections QK-clip scales, and how much."""

import math
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from optax_matrix.weights._attentions import is_kernel


def latent_factors(
    gamma: Array, balance: Any, dims: Mapping[str, int], nope: int
) -> dict[str, Array]:
    """The factors ``(..., heads, dim)`` of queries, and of keys, with values or not."""
    gamma = gamma[..., None]
    of_key = gamma ** (1 - balance)
    is_nope = {part: jnp.arange(dim) < nope for part, dim in dims.items()}
    factors = {part: jnp.where(is_nope[part], of_key, 1.0) for part in dims}
    # The key of all heads is not scaled, so its part of the query gets all of gamma.
    return factors | {"query": jnp.where(is_nope["query"], gamma / of_key, gamma)}


def shared_key_size(
    parts: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]]
) -> int | None:
    """The size of the key of all heads, from the down-projection; None if unknown."""
    kernels = {path: part for path, part in parts.items() if is_kernel(path)}
    made = [math.prod(shapes[p][1:]) for p, part in kernels.items() if part == "down"]
    keys = ("key_value", "key")
    read = [shapes[p][0] for p, part in kernels.items() if part in keys]
    if len(made) != 1 or len(read) != 1 or made <= read:
        return None  # The shared key may have a kernel of its own.
    return made[0] - read[0]


def nope_size(
    attention: str, dims: Mapping[str, int], shared: int | None, given: int | None
) -> int:
    """The size of the part of a query that is multiplied by the key of its head."""
    told = None if shared is None else dims["query"] - shared
    told = dims.get("key", told)  # Such a kernel has no values.
    nope = told if given is None else given
    if nope is None:
        raise ValueError(
            f"`qk_nope_head_dim` must be given for {attention!r}, because no `kv_a` "
            "beside its `kv_b` tells the size of the key that all heads share; pass "
            "the model's number, that of a head's query without a position."
        )
    most = min(dims["query"], dims.get("key_value", dims["query"] + 1) - 1)
    fits = told in (None, nope) and shared in (None, dims["query"] - nope)
    if not (0 < nope <= most and fits):
        own = {"key_value": "key and value", "key": "key"}
        (made,) = (f"{dims[p]} for its {own[p]}" for p in own if p in dims)
        raise ValueError(
            f"`qk_nope_head_dim` must fit the kernels of {attention!r}, with "
            f"{dims['query']} numbers for a head's query, {made} and "
            f"{shared or 'unknown'} for the shared key, got {nope}; pass the model's "
            "number, or None."
        )
    return nope
