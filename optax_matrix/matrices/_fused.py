"""Attention and gated kernels, whose axes come in any order: by name and shape."""

from collections.abc import Sequence

from optax_matrix.matrices.names import SCANNED, named, without_index
from optax_matrix.matrices.view import MatrixDimensionNumbers

_READERS = named(r"[qkv]_(proj|einsum)")
_WRITERS = named(r"o_proj|[^/]*out_proj|attention_output|attn_vec_einsum")
_FUSED = {
    named(r"qkv(_proj|_einsum)?|query_key_value"): 3,
    named(r"kv(_proj|_einsum)?|wi|gate_up(_proj)?|gating_einsum"): 2,
}
_EITHER_ORDER = named(r"gating_einsum")  # Gemma has (2, in, out) and (2, out, in).

Answer = tuple[MatrixDimensionNumbers, str]


def numbers_of_fused(path: str, shape: Sequence[int]) -> Answer | None:
    """The dimension numbers of a kernel with heads or several matrices, by its name.

    No width of a model is less than its number of heads or their dimension, so the
    longest axis of an attention kernel is the residual stream. Of equal ones it is the
    first if the kernel reads the stream, the last if it writes it. In a fused kernel
    the first axis of size 3 (query, key, value) or 2 (key and value, gate and up)
    counts matrices. Layers, where they are stacked, are on the first axis. None for
    other names and axes.
    """
    name = without_index(path)
    axes = list(range(1 if SCANNED.search(path) else 0, len(shape)))
    for pattern, count in _FUSED.items():
        found = [a for a in axes if shape[a] == count]
        if len(axes) > 2 and found and pattern.search(name):
            axes.remove(found[0])
            return _reader(name, shape, axes)
    if len(axes) > 2 and _READERS.search(name):
        return _reader(name, shape, axes)
    if len(axes) > 2 and _WRITERS.search(name):
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
