"""The default rule: which leaves are matrices by their names, shapes and dtypes."""

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from optax_matrix.matrices._words import (
    HEADS,
    OTHERS,
    VOCABULARIES,
    is_embedding,
    why_other,
    without_index,
)
from optax_matrix.matrices.view import MatrixDimensionNumbers, Side, make_view

RESIDUAL = (
    *("embed", "d_model", "hidden"),
    *("embed_attn", "embed_moe", "embed_router", "embed_vocab"),
)
"""Logical names of the axis of the residual stream."""
LEAF = r"(/(kernel|weight|w))?$"
_QKV = (
    r"([qkv]|qkv|kv)(_proj|_einsum)?|w[qkv]|wqkv|query|key|value|query_key_value|c_attn"
)
_MLP = r"(feed_forward|mlp|ffn|moe|experts?)[^/]*"  # With numbers, as in LLaMA.
_UP = rf"up(_proj)?|{_MLP}/w3|wi(_1)?|fc1|c_fc|fc_in"
_GATE = rf"gate(_up)?(_proj)?|gating_einsum|{_MLP}/w1|wi_0"
_WRITERS = rf"(o|down|c|[^/]*out)_proj|o|wo|down|{_MLP}/(w2|linear)|fc2|fc_out"
_ATTENTION_OUT = r"[^/]*(att|mha|self|cross)[^/]*/out|attention_output|attn_vec_einsum"


SCANNED = re.compile(
    r"scan|(^|/)[^/]*(layers|blocks|stack|repeat)(?!/\d)(/|$)", re.IGNORECASE
)
"""Regular expression of the paths of layers that are stacked in one array."""


def named(names: str) -> re.Pattern:
    """Expression of the paths of kernels that have one of these names."""
    return re.compile(rf"(^|/)({names}){LEAF}", re.IGNORECASE)


QKV = named(_QKV)
UP = named(_UP)
HEAD = re.compile(HEADS, re.IGNORECASE)
_READS = named(f"{_QKV}|{_UP}|{_GATE}")
_WRITES = named(f"{_WRITERS}|{_ATTENTION_OUT}")


def side_by_name(path: str) -> Side | None:
    """The side of a kernel that is on the residual stream; None for unusual names.

    Query, key, value, up, gate and heads read the stream on their input side; o, down
    and embeddings write it on their output side.
    """
    path = without_index(path)
    if _READS.search(path):
        return "in"
    if _WRITES.search(path) or is_embedding(path):
        return "out"
    return "in" if HEAD.search(path) else None


_HEAD_READERS = named(r"[qkv]_(proj|einsum)")
_HEAD_WRITERS = named(r"o_proj|[^/]*out_proj|attention_output|attn_vec_einsum")
_FUSED = {
    named(r"qkv(_proj|_einsum)?|query_key_value"): 3,
    named(r"kv(_proj|_einsum)?|wi|gate_up(_proj)?|gating_einsum"): 2,
}
_EITHER_ORDER = named(r"gating_einsum")  # Gemma has (2, in, out) and (2, out, in).

Answer = tuple[Any, str]  # Dimension numbers, or None, and the reason.


def numbers_of_fused(path: str, shape: Sequence[int], stack: int) -> Answer | None:
    """The dimension numbers of a kernel with heads or several matrices, by its name.

    No width of a model is less than its number of heads or their dimension, so the
    longest axis of an attention kernel is the residual stream. Of equal ones it is the
    first if the kernel reads the stream, the last if it writes it. In a fused kernel
    the first axis of size 3 (query, key, value) or 2 (key and value, gate and up)
    counts matrices. The first ``stack`` axes are of layers. None for other names and
    axes.
    """
    name = without_index(path)
    axes = list(range(stack, len(shape)))
    for pattern, count in _FUSED.items():
        found = [a for a in axes if shape[a] == count]
        if len(axes) > 2 and found and pattern.search(name):
            axes.remove(found[0])
            return _reader(name, shape, axes)
    if len(axes) > 2 and _HEAD_READERS.search(name):
        return _reader(name, shape, axes)
    if len(axes) > 2 and _HEAD_WRITERS.search(name):
        stream = max(reversed(axes), key=shape.__getitem__)
        heads = tuple(a for a in axes if a != stream)
        numbers = MatrixDimensionNumbers(heads, stream, residual="out")
        return numbers, _reason(shape, {stream: "out"} | _named_heads(heads))
    return None


def _reader(name: str, shape: Sequence[int], axes: list[int]) -> Answer:
    if len(axes) == 2:
        longer = shape[axes[0]] > shape[axes[1]]
        into, out = axes[::-1] if longer and _EITHER_ORDER.search(name) else axes
        numbers = MatrixDimensionNumbers(into, out, residual="in")
        return numbers, _reason(shape, {into: "in", out: "out"})
    stream = max(axes, key=shape.__getitem__)
    heads = tuple(a for a in axes if a != stream)
    numbers = MatrixDimensionNumbers(stream, heads, residual="in")
    return numbers, _reason(shape, {stream: "in"} | _named_heads(heads))


def _named_heads(axes: Sequence[int]) -> dict[int, str]:
    return dict.fromkeys(axes, "heads") | {axes[-1]: "dim"}


def _reason(shape: Sequence[int], roles: dict[int, str]) -> str:
    words = [roles.get(axis, str(size)) for axis, size in enumerate(shape)]
    kind = "attention" if "dim" in words else "fused"
    return f"{kind} kernel ({', '.join(words)})"


class Guess(str):
    """A reason of the default rule, which decides by names and shapes."""


class Accepted(Guess):
    """The same, where the user accepts what names and shapes say."""


_CONVOLUTIONS = re.compile(r"conv[^/]*(/[^/]*)?$", re.IGNORECASE)
_PATCHES = re.compile(r"patch[^/]*(/[^/]*)?$", re.IGNORECASE)
LORA_FACTOR = re.compile(
    r"(^|/)([^/]*_)?lora_(?P<factor>[ab])(/[^/]*)?$", re.IGNORECASE
)
# With latent attention ``q_b`` and ``kv_b``, which read the latent vectors.
_READ_HEADS = re.compile(
    r"(^|/)(query|key|value|w?(q|kv)_b(_proj)?)/[^/]*$", re.IGNORECASE
)
_WRITE_HEADS = re.compile(r"(att|mha|self|cross)[^/]*/out/[^/]*$", re.IGNORECASE)


def default_rule(path: str, leaf: Any) -> Answer:
    """Decides from a leaf's path, shape and dtype whether it is a matrix, and how.

    Embeddings, output heads, norms, biases, routers, tables, tokens, frequencies and
    depthwise convolutions are recognized by the name of the leaf or of its module, not
    by names farther up in the path; they get the other optimizer. Kernels are
    ``(..., in, out)``, as in Flax, with leading batch axes for layers and experts.
    Convolutions ``(h, w, in, out)`` sum over all axes but the last. In query, key,
    value and out kernels of Flax attention, heads and head dimension are merged.
    Projections of other names (``q_proj``, ``qkv_einsum``, ``attn_out_proj``) have
    their axes in any order: the longest is on the residual stream, and one of size 2 or
    3 in a fused kernel counts matrices, as does that of size 2 in ``wi`` and
    ``gating_einsum``. Indices at the end of a path, as in ``q_proj/weight/0``, are no
    part of a name.

    Three axes under ``query`` may be ``(in, heads, dim)`` or scanned
    ``(layers, in, out)``; they are the latter if the path has ``layers``, ``blocks`` or
    ``scan`` with no index after it. The side on the residual stream is known for the
    usual names: query, key, value, up and gate read the stream on their input side; o
    and down write it on their output side.

    Recipes apply the rule to a leaf in its tree. There, the type of a layer of Equinox
    shows that its weight is ``(out, in)``, and the leaves around a leaf show more: a
    leaf ``(layers, n)`` beside kernels ``(layers, m, n)`` is a stack of vectors; a
    ``gate`` beside stacks of experts is a router; a bias, or the width of the
    embedding, shows which axis of a ``weight`` is the output; where kernels have the
    usual names, a leaf of two axes without such a name is no kernel. Doubtful leaves
    (flat fused kernels, gates of a cell, layers on axis 1) get a
    `DoubtfulMatrixWarning` at `init`, with the argument that settles it, by `by_path`,
    `infer` or dimension numbers. `describe` shows what was decided for each leaf.

    Args:
        path: The leaf's path, as in ``"layers/0/mlp/up/kernel"``.
        leaf: Anything with ``shape`` and ``dtype``; without its tree.

    Returns:
        The dimension numbers (None for the other optimizer) and the reason.

    Examples:
        >>> import jax.numpy as jnp
        >>> default_rule("layers/0/up/kernel", jnp.ones((4, 8)))[1]
        'kernel (in, out)'
        >>> default_rule("lm_head/kernel", jnp.ones((4, 8)))
        (None, 'an output head by its name')
    """
    return _guess(path, leaf, VOCABULARIES + OTHERS)


def default_full_rule(path: str, leaf: Any) -> Answer:
    """`default_rule`, except that embeddings and heads are matrices."""
    return _guess(path, leaf, OTHERS)


def _guess(path: str, leaf: Any, others: Any) -> Answer:
    if reason := _excluded(path, leaf, others) or getattr(leaf, "other", None):
        return None, Guess(reason)
    numbers, reason = numbers_of_kernel(path, leaf)
    view = make_view(leaf.shape, numbers, path)
    if min(view.rows, view.cols) < 2:
        return None, Guess("a side of length one")
    return numbers, Guess(reason)


def is_excluded(path: str, leaf: Any, full: bool = False) -> bool:
    """Whether the default rule excludes a leaf whatever its axes are.

    It is a vector, an integer, a depthwise convolution, or excluded by its name or
    layer; with ``full``, embeddings and heads are not.
    """
    others = OTHERS if full else VOCABULARIES + OTHERS
    return _excluded(path, leaf, others) is not None


def _excluded(path: str, leaf: Any, others: Any) -> str | None:
    shape = leaf.shape
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        return f"dtype {jnp.dtype(leaf.dtype).name} is not floating"
    if len(shape) < 2:
        return "a vector" if shape else "a scalar"
    if reason := why_other(path, others):
        return reason
    numbers, reason = getattr(leaf, "layer", None) or ((), "")
    if numbers is None and (others is not OTHERS or "embedding" not in reason):
        return reason
    if not numbers and _is_convolution(path, shape) and shape[-2] == 1:
        return "a convolution of one input channel, as depthwise ones are"
    return None


def numbers_of_kernel(path: str, leaf: Any) -> tuple[Any, str]:
    """The dimension numbers of a kernel that is a matrix, and the reason for them."""
    numbers, reason = getattr(leaf, "layer", None) or (None, "")
    if numbers is not None:
        return dataclasses.replace(numbers, residual=side_by_name(path)), reason
    name, shape = without_index(path), leaf.shape
    stack = max(getattr(leaf, "stack", 0), 1 if SCANNED.search(path) else 0)
    heads = len(shape) > 2 + stack
    if heads and _READ_HEADS.search(name):
        numbers = MatrixDimensionNumbers(-3, (-2, -1), residual=side_by_name(path))
        return numbers, "attention kernel (in, heads, dim)"
    if heads and _WRITE_HEADS.search(name):
        numbers = MatrixDimensionNumbers((-3, -2), -1, residual="out")
        return numbers, "attention kernel (heads, dim, out)"
    if heads and (fused := numbers_of_fused(path, shape, stack)):
        return fused
    if axes := getattr(leaf, "axes", None):
        numbers = MatrixDimensionNumbers(*axes, residual=side_by_name(path))
        return numbers, "a kernel whose siblings tell its axes"
    if _is_convolution(path, shape):
        inputs = tuple(range(len(shape) - 1))
        return MatrixDimensionNumbers(inputs, -1), "a convolution (..., in, out)"
    side = side_by_name(path)
    if getattr(leaf, "is_transposed", False):
        return MatrixDimensionNumbers(-1, -2, residual=side), "kernel (out, in)"
    if factor := LORA_FACTOR.search(path):
        sides = "(in, rank)" if factor["factor"] in "aA" else "(rank, out)"
        reason = f"a LoRA factor {sides}"
    else:
        many = len(shape) > 2
        reason = "kernels (..., in, out), batch first" if many else "kernel (in, out)"
    return MatrixDimensionNumbers(-2, -1, residual=side), reason


def _is_convolution(path: str, shape: tuple[int, ...]) -> bool:
    if len(shape) < 3:
        return False
    square = len(shape) == 4 and shape[0] == shape[1]
    if square and (shape[0] in (3, 5, 7) or _PATCHES.search(path)):
        return True
    return _CONVOLUTIONS.search(path) is not None
