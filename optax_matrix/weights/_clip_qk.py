"""QK-Clip: query and key kernels are scaled down where attention logits are large."""

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from optax_matrix._arguments import (
    NotNegativeInt,
    Pattern,
    Positive,
    PositiveInt,
    Share,
    checked,
)
from optax_matrix._mesh import keep_sharding
from optax_matrix._paths import map_named, named_leaves
from optax_matrix.weights._attentions import (
    KEY,
    KEY_VALUE,
    QUERY,
    find_attentions,
    inputs,
    is_kernel,
    logits_of,
)
from optax_matrix.weights._sharding import replicated_beside


@checked
def clip_qk(
    params: Any,
    max_logits: Any,
    tau: Positive = 100.0,
    *,
    balance: Share = 0.5,
    layer_axis: NotNegativeInt = 0,
    query: Pattern = QUERY,
    key: Pattern = KEY,
    key_value: Pattern = KEY_VALUE,
    qk_nope_head_dim: PositiveInt | None = None,
) -> Any:
    r"""Scales queries and keys so that no attention logit of the last batch passes tau.

    .. math::
        \gamma_h = \min(1, \tau / S_h), \qquad g_k = \min_{h \in k} \gamma_h, \qquad
        W^K_k \mapsto g_k^{1 - a} \, W^K_k, \qquad
        W^Q_h \mapsto \gamma_h \, g_k^{a - 1} \, W^Q_h

    for every query head h of key head k, where :math:`S_h` is the largest logit of head
    h and a is ``balance``. Logits are bilinear in queries and keys, so this multiplies
    the logits of head h by :math:`\gamma_h` exactly: the largest becomes tau, and a
    head below tau is unchanged. Biases are scaled like their kernels. Call it after the
    update of each step; the optimizer does not change (MuonClip is `muon` with
    ``scaling="max"`` and this).

    In latent attention (MLA: DeepSeek, Kimi) ``kv_b`` computes for each head a key of
    its own together with its value, and all heads share one key with the position:

    ============================  ======================================================
    kernel                        factor
    ============================  ======================================================
    ``q_b``, numbers without      :math:`\gamma_h^a`
    position
    ``q_b``, rotated numbers      :math:`\gamma_h`
    ``kv_b``, keys                :math:`\gamma_h^{1 - a}`
    ``kv_b``, values              1
    ``kv_a`` with the shared key  1
    ============================  ======================================================

    A ``kv_b``, ``kv_b_proj``, ``wkv_b`` or ``kv_up_proj`` identifies it. Queries come
    from ``q_b`` (``q_b_proj``, ``wq_b``) or, without a latent query, from ``q_proj``,
    ``wq`` or ``query``. Within a head the numbers without position come first, and keys
    before values, as in DeepSeek's programs and MaxText.

    Args:
        params: Parameters with query and key kernels ``(in, heads, dim)`` or
            ``(in, heads * dim)``, as in Flax: a dict, an NNX state, Linen variables.
            Under grouped-query attention, consecutive query heads share a key head.
        max_logits: The largest logit of each head, ``(heads,)``, for each attention, as
            its softmax gets them (scaled by 1 / sqrt(dim)). A dict by the path of the
            module that holds query and key, or a tree whose leaves are below that path,
            such as the intermediates of a forward pass; one array, if there is one
            attention. ``(layers, heads)`` for scanned layers. Of several leaves for one
            attention the largest counts. A NaN or infinite logit clips nothing.
        tau: Threshold :math:`\tau`. The report has 100.
        balance: Share a of the query, from 0 to 1. With 1, keys are left alone.
        layer_axis: Axis of scanned layers in the kernels and biases.
        query: Regular expression of the name of the query's module or leaf.
        key: The same for the key.
        key_value: The same for the up-projection of latent attention.
        qk_nope_head_dim: In latent attention, how many numbers of a head's query have
            no position. None: its other numbers are as many as ``kv_a`` (``wkv_a``,
            ``kv_a_proj_with_mqa``) has besides the latent vector.

    Returns:
        The tree with scaled kernels; dtypes and shardings stay the same.

    Raises:
        ValueError: If an attention has no logits, or logits no attention, if shapes do
            not fit or do not determine ``qk_nope_head_dim``, or if queries or keys are
            normalized after their projection, which would undo the scaling.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> kernels = {"query": jnp.ones((3, 2, 4)), "key": jnp.ones((3, 1, 4))}
        >>> clipped = om.clip_qk({"attn": kernels}, {"attn": jnp.array([400.0, 50.0])})
        >>> clipped["attn"]["query"][0, :, 0], clipped["attn"]["key"][0, :, 0]
        (Array([0.5, 2. ], dtype=float32), Array([0.5], dtype=float32))

        Latent attention with heads of 3 + 2 numbers and values of 4:

        >>> shapes = {"wq_b": (6, 1, 5), "wkv_a": (8, 7 + 2), "wkv_b": (7, 1, 3 + 4)}
        >>> kernels = {name: jnp.ones(shape) for name, shape in shapes.items()}
        >>> clipped = om.clip_qk(kernels, jnp.array([400.0]))
        >>> clipped["wq_b"][0, 0].tolist(), clipped["wkv_b"][0, 0].tolist()
        ([0.5, 0.5, 0.5, 0.25, 0.25], [0.5, 0.5, 0.5, 1.0, 1.0, 1.0, 1.0])

    References:
        Kimi Team, `Kimi K2 <https://arxiv.org/abs/2507.20534>`_, 2025, Section 2.1 and
        Algorithm 1, for heads with keys of their own and for latent attention, both
        with a = 1/2. Where heads share a key and no other, it is not in the report;
        here it gets the smallest factor of its heads, and the query of each is
        corrected, to the same effect.
    """
    leaves = named_leaves(params)
    # First the kernels that also compute values; an expression for keys may match them.
    names = {"key_value": key_value, "query": query, "key": key}
    attentions = find_attentions(leaves, names)
    factors: dict[str, Array] = {}
    for attention, largest in logits_of(max_logits, attentions).items():
        largest = replicated_beside(largest, largest)
        sizes, parts = largest.shape[:-1], attentions[attention]
        shapes = {p: _one_layer(leaves[p], p, layer_axis, sizes) for p in parts}
        widths = _widths(attention, parts, shapes)
        is_latent = not {"key_value", "down"}.isdisjoint(parts.values())
        key_heads = _key_heads(attention, widths, largest.shape[-1], is_latent)
        gamma = _gamma(largest, tau)
        if is_latent:
            dims = {part: width // key_heads for part, width in widths.items()}
            shared = _shared_key_size(parts, shapes)
            nope = _nope_size(attention, dims, shared, qk_nope_head_dim)
            by_part = _latent_factors(gamma, balance, dims, nope)
        else:
            by_part = _factors(gamma, balance, key_heads)
        of_layers = range(len(sizes))
        placed = range(layer_axis, layer_axis + len(sizes))
        for path, part in parts.items():
            if part in by_part:
                factor = _spread(by_part[part], path, shapes[path])
                factors[path] = jnp.moveaxis(factor, of_layers, placed)

    def scaled(path: str, leaf: Any) -> Any:
        if path not in factors:
            return leaf
        product = lambda leaf, factor: (leaf * factor).astype(leaf.dtype)
        return keep_sharding(product, leaf, factors[path])

    with jax.numpy_dtype_promotion("standard"):
        return map_named(scaled, params)


def _one_layer(
    leaf: Any, path: str, axis: int, layers: tuple[int, ...]
) -> tuple[int, ...]:
    """The shape of a kernel ``(in, ...)`` or bias of one layer."""
    shape = jnp.shape(leaf)
    end = axis + len(layers)
    rest = shape[:axis] + shape[end:]
    if len(rest) - inputs(path) not in (1, 2) or shape[axis:end] != layers:
        raise ValueError(
            "`params` must have kernels (in, heads, dim) or (in, heads * dim), with "
            f"the layers {layers} of `max_logits` on axis {axis}, got {shape} for "
            f"{path!r}; for layers on another axis pass `layer_axis`."
        )
    return rest


def _widths(attention: str, parts: Mapping[str, str], shapes: Any) -> dict[str, int]:
    """The numbers per token that query and key kernels compute, by part."""
    made = {p: part for p, part in parts.items() if inputs(p) and part != "down"}
    found = {part: math.prod(shapes[path][1:]) for path, part in made.items()}
    if set(found) not in ({"query", "key"}, {"query", "key_value"}):
        raise ValueError(
            f"`params` must have a query and a key kernel in {attention!r}, got "
            f"{sorted(parts)}; name them by `query` and `key`, or in latent attention "
            "by `query` and `key_value`."
        )
    return found


def _key_heads(
    attention: str, widths: Mapping[str, int], heads: int, is_latent: bool
) -> int:
    """The number of key heads, by the shapes of the kernels."""
    dim, rest = divmod(widths["query"], heads)
    key_heads, more = heads, widths.get("key_value", widths.get("key", 0)) % heads
    if not is_latent and not rest:
        key_heads, more = divmod(widths["key"], dim)
    if rest or more or not key_heads or heads % key_heads:
        listed = [f"{width} for the {part}" for part, width in sorted(widths.items())]
        raise ValueError(
            f"`max_logits` must have one number for each query head, got {heads} for "
            f"{attention!r}, whose kernels make {' and '.join(listed)} per token."
        )
    return key_heads


def _gamma(largest: Array, tau: Any) -> Array:
    """The factor of each head's logits."""
    exceeds = jnp.isfinite(largest) & (largest > tau)
    return jnp.where(exceeds, tau / jnp.where(exceeds, largest, tau), 1.0)


def _factors(gamma: Array, balance: Any, key_heads: int) -> dict[str, Array]:
    """The factors ``(..., heads, 1)`` of queries and keys."""
    smallest = gamma.reshape(*gamma.shape[:-1], key_heads, -1).min(-1)
    of_key = smallest ** (1 - balance)
    shared = jnp.repeat(of_key, gamma.shape[-1] // key_heads, axis=-1)
    return {"query": (gamma / shared)[..., None], "key": of_key[..., None]}


def _spread(factor: Array, path: str, shape: tuple[int, ...]) -> Array:
    """Factors ``(..., heads, dim)`` with the axes of one layer's kernel or bias."""
    *layers, heads, dim = factor.shape
    ones = (1,) * inputs(path)
    if len(shape) - len(ones) == 2:
        if shape[-2] != heads:
            raise ValueError(
                f"`params` must have kernels (in, heads, dim) with {heads} heads, or "
                f"(in, heads * dim), got {shape} for {path!r}; reshape it."
            )
        return factor.reshape(*layers, *ones, heads, dim)
    whole = jnp.broadcast_to(factor, (*layers, heads, shape[-1] // heads))
    return whole.reshape(*layers, *ones, -1)


def _latent_factors(
    gamma: Array, balance: Any, dims: Mapping[str, int], nope: int
) -> dict[str, Array]:
    """The factors ``(..., heads, dim)`` of queries, and of keys, with values or not."""
    gamma = gamma[..., None]
    of_key = gamma ** (1 - balance)
    is_nope = {part: jnp.arange(dim) < nope for part, dim in dims.items()}
    factors = {part: jnp.where(is_nope[part], of_key, 1.0) for part in dims}
    # The numbers that meet the shared key, which stays, get the whole factor.
    return factors | {"query": jnp.where(is_nope["query"], gamma / of_key, gamma)}


def _shared_key_size(
    parts: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]]
) -> int | None:
    """The size of the key that the down-projection computes; None if unknown."""
    kernels = {path: part for path, part in parts.items() if is_kernel(path)}
    made = [math.prod(shapes[p][1:]) for p, part in kernels.items() if part == "down"]
    keys = ("key_value", "key")
    read = [shapes[p][0] for p, part in kernels.items() if part in keys]
    if len(made) != 1 or len(read) != 1 or made <= read:
        return None  # The shared key may have a kernel of its own.
    return made[0] - read[0]


def _nope_size(
    attention: str, dims: Mapping[str, int], shared: int | None, given: int | None
) -> int:
    """How many numbers of a head's query meet the key of that head."""
    told = None if shared is None else dims["query"] - shared
    told = dims.get("key", told)  # A kernel of its own computes nothing else.
    nope = told if given is None else given
    if nope is None:
        raise ValueError(
            f"`qk_nope_head_dim` must be given for {attention!r}, because no `kv_a` "
            "beside its `kv_b` shows the size of the key that all heads share; pass "
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
