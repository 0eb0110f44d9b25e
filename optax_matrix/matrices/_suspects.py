"""Leaves whose siblings and names leave open what they are."""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from optax_matrix.matrices._siblings import NO_NAME, ROUTER, Siblings
from optax_matrix.matrices._words import OTHERS, VOCABULARIES, own_names, why_other
from optax_matrix.matrices.names import side_by_name

_END = r"(_proj|_einsum)?(/(kernel|weight|w))?$"
_THREE = re.compile(
    rf"(^|/)((to_|w|in_)?qkv|query_key_value|c_attn|in_proj_(weight|qkv\w*)){_END}",
    re.IGNORECASE,
)
_TWO = re.compile(
    rf"(^|/)(gate_up|up_gate|(to_|w)?kv|gating_einsum){_END}", re.IGNORECASE
)
_CELL = re.compile(
    r"(lstm|gru)[^/]*(/linear)?/(w|kernel|weight)\w*$"
    r"|(^|/)(dense|linear|w|weight|kernel)_(i|h|ih|hh)(/[^/]*)?$",
    re.IGNORECASE,
)
_ONE_GATE = re.compile(r"(^|/)[ih][a-z]_?/[^/]*$")
_MODULATION = re.compile(r"modulation|ada_?(ln|layer_?norm|norm)", re.IGNORECASE)
_DEPTHWISE = re.compile(r"depth|dw|conv1d|separable|mobile", re.IGNORECASE)
_OUT = re.compile(r"(^|/)(o|[^/]*out|c|proj)(_proj)?(/|$)", re.IGNORECASE)


_PLAIN = ("kernel (in, out)", "kernels (..., in, out), batch first")


def suspects(guesses: Mapping[str, Any], leaves: Mapping[str, Any]) -> dict[str, str]:
    """A clause for each leaf that may be something else, by path."""
    siblings, found = Siblings(leaves), {}
    for path, guess in guesses.items():
        leaf = leaves[path]
        if guess.view is None:
            clause = _of_other(path, leaf, guess.reason)
        else:
            clause = _of_matrix(path, guess.view, guess.reason, siblings)
        if clause is not None:
            found[path] = clause
    return found | _only_dense(guesses)


def _of_other(path: str, leaf: Any, reason: str) -> str | None:
    if reason == NO_NAME:
        return f"matrices.by_path(include={_quoted(path)}) makes it a matrix"
    is_complex = jnp.issubdtype(leaf.dtype, jnp.complexfloating)
    is_kernel = why_other(path, VOCABULARIES + OTHERS) is None
    if is_complex and is_kernel and len(leaf.shape) > 1:
        return "the methods take real matrices; hold its real and imaginary parts"
    if reason.startswith("a convolution of one input") and not _DEPTHWISE.search(path):
        return f"its name is not of depthwise ones: include={_quoted(path)}"
    if reason == "an output head by its name" and len(leaf.shape) > 2:
        return "it has more axes than an output head"
    return None


def _of_matrix(path: str, view: Any, reason: str, siblings: Siblings) -> str | None:
    if (size := siblings.layers_on_axis_one(path)) and view.batch_axes != (1,):
        return f"axis 1 has {size} entries in all leaves around it, perhaps layers"
    out = view.shape[view.output_axes[-1]]
    is_flat = len(view.output_axes) == len(view.reduction_axes) == 1
    if is_flat and view.pieces[0].rows == view.rows:
        if sections := _sections(path, view.cols, out, siblings):
            return (
                "it may hold several matrices beside one another; separate them by "
                f"numbers={{{_quoted(path)}: MatrixDimensionNumbers("
                f"{view.reduction_axes[0]}, {view.output_axes[0]}, "
                f"output_sections={sections})}}"
            )
        if _is_like_router(path, view, siblings):
            return "a `gate` of another width than its siblings may be a router"
    if reason in _PLAIN and siblings.is_of_unknown_side(path):
        return (
            "as in PyTorch it may be (out, in): numbers={'weight': "
            "MatrixDimensionNumbers(-1, -2)}, exclude='embed|lm_head'"
        )
    is_square = len(view.shape) == 4 and view.shape[0] == view.shape[1] >= 8
    if is_square and view.shape[2] <= 4 and len(view.reduction_axes) == 3:
        return "it may embed patches"
    return None


def _sections(path: str, cols: int, out: int, siblings: Siblings) -> Any:
    """Sizes of the matrices that a flat kernel may hold; None if it is one."""
    near = own_names(path)
    if _THREE.search(near):
        for shape in siblings.beside(path, _OUT):
            heads = max((n for n in shape[-2:] if n < out), default=out)
            if 3 * heads != out and heads < out and (out - heads) % 2 == 0:
                return (heads, (out - heads) // 2, (out - heads) // 2)
        return 3 if out % 3 == 0 else "(q, k, v)"
    if _TWO.search(near):
        return 2
    if _CELL.search(path) and not _ONE_GATE.search(path) and out > cols:
        hidden = {cols, *(n for shape in siblings.beside(path) for n in shape)}
        return next((k for k in (4, 3) if out % k == 0 and out // k in hidden), 4)
    if _MODULATION.search(path):
        return next((k for k in (9, 6, 3, 2) if out == k * cols), None)
    is_lone = side_by_name(path) or "lora" in near.lower()
    return 2 if not is_lone and _is_gated(cols, out, siblings.beside(path)) else None


def _is_gated(cols: int, out: int, beside: Counter[tuple[int, ...]]) -> bool:
    """Whether the only other kernel around takes half of the outputs back."""
    if beside.total() != 1:
        return False
    (shape,) = beside
    return 2 * shape[-2] == out and shape[-1] == cols


def _is_like_router(path: str, view: Any, siblings: Siblings) -> bool:
    if not ROUTER.search(own_names(path)):
        return False
    return view.rows * 4 <= view.cols and view.shape not in siblings.beside(path)


def _only_dense(guesses: Mapping[str, Any]) -> dict[str, str]:
    """The only kernel of two axes in a tree of convolutions."""
    views = {p: g.view for p, g in guesses.items() if g.view is not None}
    dense = [p for p, view in views.items() if len(view.shape) == 2]
    convolutions = sum(len(view.reduction_axes) > 1 for view in views.values())
    if convolutions < 3 or len(dense) != 1 or side_by_name(dense[0]):
        return {}
    return {dense[0]: "all others are convolutions: it may be an output head"}


def _quoted(path: str) -> str:
    """A path as the expression that stands for it and for those of other layers."""
    return repr(re.sub(r"(?<![^/_])\d+(?=/)", r"\\d+", re.escape(path)))
