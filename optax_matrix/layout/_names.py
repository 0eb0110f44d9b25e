"""The usual names of layers, and what they say about the residual stream."""

import re

from optax_matrix.layout._dimension_numbers import Side

EMBEDDINGS = (
    r"(^|[/_])(embed(ding|dings|der)?(_tokens|_positions|_\d+)?|emb|wte|wpe)(/|$)"
)
HEADS = r"(^|/)(lm_head|heads?(_\d+)?|logits(_dense)?|classifier|unembed)(/[^/]*)?$"
"""Regular expression of the paths of output heads (the last layer)."""
_LEAF = r"(/(kernel|weight|w))?$"
_QKV = r"([qkv]|qkv|kv)(_proj)?|w[qkv]|wqkv|query|key|value|query_key_value|c_attn"
_MLP = r"(feed_forward|mlp|ffn|moe|experts?)[^/]*"  # With numbers, as in LLaMA.
_UP = rf"up(_proj)?|{_MLP}/w3|wi(_1)?|fc1|c_fc|fc_in"
_GATE = rf"gate(_up)?(_proj)?|{_MLP}/w1|wi_0"
_WRITERS = rf"(o|out|down|c)_proj|o|wo|down|{_MLP}/w2|fc2|fc_out"
_ATTENTION_OUT = r"[^/]*(att|mha|self|cross)[^/]*/out"


def _named(names: str) -> re.Pattern:
    return re.compile(rf"(^|/)({names}){_LEAF}", re.IGNORECASE)


QKV = _named(_QKV)
UP = _named(_UP)
EMBEDDING = re.compile(EMBEDDINGS, re.IGNORECASE)
HEAD = re.compile(HEADS, re.IGNORECASE)
_READS = _named(f"{_QKV}|{_UP}|{_GATE}")
_WRITES = _named(f"{_WRITERS}|{_ATTENTION_OUT}")


def side_by_name(path: str) -> Side | None:
    """The side of a kernel that is on the residual stream; None for unusual names.

    Query, key, value, up, gate and heads read the stream on their input side; o, down
    and embeddings write it on their output side.
    """
    if _READS.search(path):
        return "in"
    if _WRITES.search(path) or EMBEDDING.search(path):
        return "out"
    return "in" if HEAD.search(path) else None
