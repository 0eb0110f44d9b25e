"""The attentions of a tree: leaves of their queries and keys, and their logits."""

import re
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from optax_matrix._paths import named_leaves
from optax_matrix.matrices.names import LORA_FACTOR

QUERY = r"(?i:w_?q|w?q(uery)?(_b|_up)?(_proj)?)"
KEY = r"(?i:w_?k|w?k(ey)?(_b|_up)?(_proj)?)"
KEY_VALUE = r"(?i:w?kv_(b|up)(_proj)?)"
_KEY_VALUE_DOWN = r"(?i:w?kv_(a|down)(_proj)?(_with_mqa)?)"
_QUERY_DOWN = r"(?i:w?q_(a|down)(_proj)?)"
_QUERY_NORM = re.compile(r"(?i:(q|query)_norm)(/|$)")
# The indexer of sparse attention computes no logits.
_INDEXER = re.compile(r"(?i:(^|/)[^/]*indexer[^/]*/)")

Names = Mapping[str, str]  # By part: "query", "key", "key_value".


def find_attentions(
    leaves: Mapping[str, Any], names: Names
) -> dict[str, dict[str, str]]:
    """By the path of each attention, the parts of its leaves.

    ``"down"`` projects to the latent vector and to the key that all heads share.
    """
    leaves = {path: x for path, x in leaves.items() if not _INDEXER.search(path)}
    _refuse_norms(leaves, names)
    found: dict[str, dict[str, str]] = {}
    for path in leaves:
        if role := _role(path, {**names, "down": _KEY_VALUE_DOWN}):
            found.setdefault(role[0], {})[path] = role[1]
    return {scope: x for scope, x in found.items() if set(x.values()) != {"down"}}


def is_kernel(path: str) -> bool:
    """Whether a leaf is no bias, and no factor of LoRA."""
    return inputs(path) == 1 and not LORA_FACTOR.search(path)


def inputs(path: str) -> int:
    """The number of axes of inputs: one for kernels, none for biases."""
    return 0 if re.search(r"(^|/)(\w*bias|b)$", path) else 1


def _role(path: str, names: Names) -> tuple[str, str] | None:
    """The path of the attention that a leaf belongs to, and its part there."""
    factor = LORA_FACTOR.search(path)
    if factor and factor["factor"] in "aA":
        return None  # It has the inputs, and B the outputs.
    for place in (path, path[: factor.start()] if factor else path):
        for part, name in names.items():
            found = re.fullmatch(rf"(?:(?P<scope>.*)/)?(?:{name})(?:/[^/]*)?", place)
            if found:
                scope = found["scope"] or ""
                _refuse_values(part, place[len(scope) :].strip("/"))
                return scope, part
    return None


def _refuse_values(part: str, name: str) -> None:
    if part == "key" and "kv" in name.lower():
        raise ValueError(
            f"`key` must name kernels of keys alone, got {name!r}, which holds values, "
            "too; name the up-projection of latent attention by `key_value`, and split "
            "another fused kernel."
        )


def _refuse_norms(leaves: Mapping[str, Any], names: Names) -> None:
    """Raises for norms of queries and keys, but not for those of latent vectors."""
    either = "|".join(names.values())
    norm = re.compile(rf"(.*/)?(?:{either})_(?!a_|down_)(?:\w*norm|ln)\w*(?:/.*)?")
    down = re.compile(rf"(.*/)?{_QUERY_DOWN}(?:/.*)?")
    latent = {found[1] for path in leaves if (found := down.fullmatch(path))}
    for path in leaves:
        found = norm.fullmatch(path)
        if not found:
            continue
        own = path[len(found[1] or "") :]
        if not (found[1] in latent and _QUERY_NORM.match(own)):
            raise ValueError(
                "`params` must not normalize queries or keys after their projection, "
                f"which undoes any scaling of the kernels, got {path!r}; such a model "
                "bounds its logits itself and needs no clip_qk."
            )


def logits_of(max_logits: Any, attentions: Mapping[str, Any]) -> dict[str, Array]:
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
                "the module, and other names by `query` and `key`, or in latent "
                "attention by `query` and `key_value`."
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
