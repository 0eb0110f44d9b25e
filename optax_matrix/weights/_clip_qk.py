"""QK-Clip: query and key kernels are scaled down where attention logits are large."""

import math
import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from optax_matrix._arguments import NotNegativeInt, Positive, Share, checked
from optax_matrix._mesh import keep_sharding
from optax_matrix._paths import map_named, named_leaves
from optax_matrix.matrices.names import LORA_FACTOR
from optax_matrix.weights._sharding import replicated_beside

_QUERY = r"(?i:q|query|w_?q|q(uery)?_proj)"
_KEY = r"(?i:k|key|w_?k|k(ey)?_proj)"


@checked
def clip_qk(
    params: Any,
    max_logits: Any,
    tau: Positive = 100.0,
    *,
    balance: Share = 0.5,
    layer_axis: NotNegativeInt = 0,
    query: str = _QUERY,
    key: str = _KEY,
) -> Any:
    r"""Scales queries and keys so that no attention logit of the last batch passes tau.

    .. math::
        \gamma_h = \min(1, \tau / S_h), \qquad g_k = \min_{h \in k} \gamma_h, \qquad
        W^K_k \mapsto g_k^{1 - a} \, W^K_k, \qquad
        W^Q_h \mapsto \gamma_h \, g_k^{a - 1} \, W^Q_h

    for every query head h of key head k, where :math:`S_h` is the largest logit of head
    h and a is ``balance``. Logits are bilinear in queries and keys, so those of head h
    are multiplied by :math:`\gamma_h` exactly: the largest becomes tau, and a head
    below tau computes what it did before. Biases are scaled as their kernels are. Call
    it after the update of each step; the optimizer does not change (MuonClip is `muon`
    with ``scaling="max"`` and this).

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

    Returns:
        The tree with scaled kernels; dtypes and shardings stay the same.

    Raises:
        ValueError: If an attention has no logits, or logits no attention, if shapes do
            not fit, or if queries or keys are normalized after their projection, which
            would undo the scaling.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> kernels = {"query": jnp.ones((3, 2, 4)), "key": jnp.ones((3, 1, 4))}
        >>> clipped = om.clip_qk({"attn": kernels}, {"attn": jnp.array([400.0, 50.0])})
        >>> clipped["attn"]["query"][0, :, 0], clipped["attn"]["key"][0, :, 0]
        (Array([0.5, 2. ], dtype=float32), Array([0.5], dtype=float32))

    References:
        Kimi Team, `Kimi K2 <https://arxiv.org/abs/2507.20534>`_, 2025, Section 2.1 and
        Algorithm 1. It states the rule for heads with keys of their own, where it is
        the one above: both kernels times :math:`\sqrt{\gamma_h}`. It leaves the key
        that all heads of its latent attention share alone and scales queries by
        :math:`\gamma_h`, so that no head changes another: here ``balance=1.0``. For
        shared keys this function takes the smallest factor of their heads, and corrects
        the query of each, to the same effect. Latent attention is not supported.
    """
    leaves = named_leaves(params)
    _refuse_norms(leaves, query, key)
    attentions: dict[str, dict[str, str]] = {}
    for path in leaves:
        if role := _role(path, query, key):
            attentions.setdefault(role[0], {})[path] = role[1]
    factors: dict[str, Array] = {}
    for attention, largest in _by_attention(max_logits, attentions).items():
        largest = replicated_beside(largest, largest)
        layers = largest.ndim - 1
        sizes = largest.shape[:-1]
        shapes = {
            path: _without_layers(leaves[path], path, layer_axis, sizes)
            for path in attentions[attention]
        }
        key_heads = _key_heads(attention, attentions[attention], shapes, largest)
        by_part = _factors(largest, tau, balance, key_heads)
        for path, part in attentions[attention].items():
            factor = _spread(by_part[part], path, shapes[path])
            factors[path] = jnp.moveaxis(
                factor, range(layers), range(layer_axis, layer_axis + layers)
            )

    def scaled(path: str, leaf: Any) -> Any:
        if path not in factors:
            return leaf
        product = lambda leaf, factor: (leaf * factor).astype(leaf.dtype)
        return keep_sharding(product, leaf, factors[path])

    with jax.numpy_dtype_promotion("standard"):
        return map_named(scaled, params)


def _role(path: str, query: str, key: str) -> tuple[str, str] | None:
    """The path of the attention that a leaf belongs to, and its part there."""
    factor = LORA_FACTOR.search(path)
    if factor and factor["factor"] in "aA":
        return None  # It has the inputs, and B the outputs.
    for place in (path, path[: factor.start()] if factor else path):
        for which, names in (("query", query), ("key", key)):
            found = re.fullmatch(rf"(?:(?P<scope>.*)/)?(?:{names})(?:/[^/]*)?", place)
            if found:
                return found["scope"] or "", which
    return None


def _refuse_norms(leaves: Any, query: str, key: str) -> None:
    norm = re.compile(rf"(?:.*/)?(?:{query}|{key})_(?:\w*norm|ln)\w*(?:/.*)?")
    if found := [path for path in leaves if norm.fullmatch(path)]:
        raise ValueError(
            "`params` must not normalize queries or keys after their projection, which "
            f"undoes any scaling of the kernels, got {found[0]!r}; such a model bounds "
            "its logits itself and needs no clip_qk."
        )


def _by_attention(max_logits: Any, attentions: Mapping[str, Any]) -> dict[str, Array]:
    """The largest logits by attention, at least float32."""
    found: dict[str, Array] = {}
    for path, leaf in named_leaves(max_logits).items():
        below = [a for a in attentions if _is_below(path, a)]
        if not path and len(attentions) == 1:
            below = list(attentions)
        if not below:
            raise ValueError(
                f"`max_logits` must belong to attentions of `params`, got {path!r}, "
                f"but queries and keys are in {sorted(attentions)}; give the path of "
                "the module, and other names of query and key by `query` and `key`."
            )
        attention = max(below, key=len)
        logits = jnp.asarray(leaf)
        if not logits.ndim:
            raise ValueError(
                "`max_logits` must be (heads,) or (layers, heads), got a scalar at "
                f"{path!r}; take the maximum over batch and positions only."
            )
        logits = logits.astype(np.promote_types(logits.dtype, np.float32))
        found[attention] = jnp.maximum(found.get(attention, logits), logits)
    if missing := sorted(set(attentions) - set(found)):
        raise ValueError(
            "`max_logits` must have the logits of every attention, got none for "
            f"{missing[0]!r}; zeros leave it as it is."
        )
    return found


def _is_below(path: str, module: str) -> bool:
    """Whether a leaf is in a module; Linen has ``params`` in front of one of them."""
    path, module = (f"{x}/".removeprefix("params/") for x in (path, module))
    return module in ("", "/") or path.startswith(module)


def _without_layers(
    leaf: Any, path: str, axis: int, layers: tuple[int, ...]
) -> tuple[int, ...]:
    """The shape of a kernel ``(in, ...)`` or bias of one layer."""
    shape = jnp.shape(leaf)
    end = axis + len(layers)
    rest = shape[:axis] + shape[end:]
    if len(rest) - _inputs(path) not in (1, 2) or shape[axis:end] != layers:
        raise ValueError(
            "`params` must have kernels (in, heads, dim) or (in, heads * dim), with "
            f"the layers {layers} of `max_logits` on axis {axis}, got {shape} for "
            f"{path!r}; for layers on another axis pass `layer_axis`."
        )
    return rest


def _key_heads(
    attention: str, parts: Mapping[str, str], shapes: Any, largest: Array
) -> int:
    """The number of key heads, which the kernels tell."""
    widths = {
        part: math.prod(shapes[path][1:])
        for path, part in parts.items()
        if _inputs(path)
    }
    if len(widths) < 2:
        raise ValueError(
            f"`params` must have a query and a key kernel in {attention!r}, got "
            f"{sorted(parts)}; name them by `query` and `key`."
        )
    heads = largest.shape[-1]
    dim, rest = divmod(widths["query"], heads)
    key_heads, rest_of_key = divmod(widths["key"], dim)
    if rest or rest_of_key or heads % key_heads:
        raise ValueError(
            f"`max_logits` must have one number for each query head, got {heads} for "
            f"{attention!r}, whose queries have {widths['query']} and keys "
            f"{widths['key']} numbers per token."
        )
    return key_heads


def _factors(
    largest: Array, tau: Any, balance: Any, key_heads: int
) -> dict[str, Array]:
    """The factors of query and key heads."""
    exceeds = jnp.isfinite(largest) & (largest > tau)
    gamma = jnp.where(exceeds, tau / jnp.where(exceeds, largest, tau), 1.0)
    smallest = gamma.reshape(*gamma.shape[:-1], key_heads, -1).min(-1)
    of_key = smallest ** (1 - balance)
    shared = jnp.repeat(of_key, gamma.shape[-1] // key_heads, axis=-1)
    return {"query": gamma / shared, "key": of_key}


def _spread(factor: Array, path: str, shape: tuple[int, ...]) -> Array:
    """The factors with the axes of one layer's kernel or bias."""
    ones = (1,) * _inputs(path)
    if len(shape) - len(ones) == 2:
        return factor.reshape(*factor.shape[:-1], *ones, -1, 1)
    factor = jnp.repeat(factor, shape[-1] // factor.shape[-1], axis=-1)
    return factor.reshape(*factor.shape[:-1], *ones, -1)


def _inputs(path: str) -> int:
    """The number of axes of inputs: one for kernels, none for biases."""
    return 0 if re.search(r"(^|/)(\w*bias|b)$", path) else 1
