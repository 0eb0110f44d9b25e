"""The usual names of layers, and what they say about the residual stream."""

import re

from optax_matrix.matrices.view import Side

EMBEDDINGS = (
    r"(^|[/_])((pos|tok|token)?emb(s|eds?|edder|eddings?)?"
    r"(_tokens|_positions|_table|_\d+)?|wte|wpe)(/|$)"
)
HEADS = (
    r"(^|/)((lm_|cls_|mlm_|output_|classifier_|classification_)?heads?(_\d+)?"
    r"|logits?(_?dense)?|classifier|unembed(ding)?|embed_out)(/[^/]*)?(/\d+)?$"
)
"""Regular expression of the paths of output heads (the last layer)."""
RESIDUAL = ("embed", "d_model", "hidden")
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


def without_index(path: str) -> str:
    """The path without the indices at its end, as in ``weight/0`` of a named array."""
    return _INDEX.sub("", path) or path


_INDEX = re.compile(r"(/\d+)+$")
QKV = named(_QKV)
UP = named(_UP)
EMBEDDING = re.compile(EMBEDDINGS, re.IGNORECASE)
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
    if _WRITES.search(path) or EMBEDDING.search(path):
        return "out"
    return "in" if HEAD.search(path) else None
