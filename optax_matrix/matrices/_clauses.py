"""What may be wrong with a decision of the default rule: a list of tests and clauses.

`clause_of` goes through the list and returns the clause of the first test that holds.
"""

import re
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp

from optax_matrix.matrices._facts import Tree, sides_of
from optax_matrix.matrices._scopes import Shape
from optax_matrix.matrices._siblings import NO_NAME, ROUTER
from optax_matrix.matrices._words import OTHERS, VOCABULARIES, own_names, why_other
from optax_matrix.matrices.decisions import Decision
from optax_matrix.matrices.names import side_by_name
from optax_matrix.matrices.view import MatrixView

_SMALL_VOCABULARY = 64
_PLAIN = ("kernel (in, out)", "kernels (..., in, out), batch first")

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
_LORA = re.compile("lora", re.IGNORECASE)


class Doubtful(NamedTuple):
    """A leaf with the decision of the default rule about it."""

    tree: Tree
    path: str
    view: Any
    reason: str


def clause_of(guess: Doubtful) -> str | None:
    """What may be wrong with a guess; None if no test holds."""
    rows = _OF_OTHERS if guess.view is None else _OF_MATRICES
    for test, clause in rows:
        if found := test(guess):
            return clause.format(found)
    return None


def shown(decision: Decision) -> str:
    """A decision, in words."""
    view = "no matrix" if decision.view is None else str(decision.view)
    return f"{view} ({decision.reason})"


def _names_say_otherwise(x: Doubtful) -> str | None:
    if not x.tree.is_named_by_axes(x.path):
        return None
    named = x.tree.by_axis_names[x.path]
    return None if _axes(named.view) == _axes(x.view) else shown(named)


def _has_no_kernel_name(x: Doubtful) -> str | None:
    return _quoted(x.path) if x.reason == NO_NAME else None


def _is_complex(x: Doubtful) -> bool:
    leaf = x.tree.leaves[x.path]
    is_kernel = why_other(x.path, VOCABULARIES + OTHERS) is None
    is_complex = jnp.issubdtype(leaf.dtype, jnp.complexfloating)
    return is_kernel and is_complex and len(leaf.shape) > 1


def _has_one_input(x: Doubtful) -> str | None:
    told = x.reason.startswith("a convolution of one input")
    return _quoted(x.path) if told and not _DEPTHWISE.search(x.path) else None


def _is_head_of_many_axes(x: Doubtful) -> bool:
    many = len(x.tree.leaves[x.path].shape) > 2
    return many and x.reason == "an output head by its name"


def _is_only_dense(x: Doubtful) -> bool:
    return x.path == x.tree.lone_dense and not side_by_name(x.path)


def _has_layers_on_axis_one(x: Doubtful) -> int | None:
    return None if x.view.batch_axes == (1,) else x.tree.layers_on_axis_one(x.path)


def _has_sections(x: Doubtful) -> str | None:
    if not _is_flat(x.view):
        return None
    out = x.view.shape[x.view.output_axes[-1]]
    sections = _sections(x.path, x.view.cols, out, x.tree)
    return sections and (
        f"{{{_quoted(x.path)}: MatrixDimensionNumbers({x.view.reduction_axes[0]}, "
        f"{x.view.output_axes[0]}, output_sections={sections})}}"
    )


def _is_like_router(x: Doubtful) -> bool:
    if not _is_flat(x.view) or not ROUTER.search(own_names(x.path)):
        return False
    is_narrow = x.view.rows * 4 <= x.view.cols
    return is_narrow and x.view.shape not in x.tree.beside(x.path)


def _may_be_transposed(x: Doubtful) -> bool:
    return x.reason in _PLAIN and x.tree.siblings.is_of_unknown_side(x.path)


def _may_embed_patches(x: Doubtful) -> bool:
    shape = x.view.shape
    is_square = len(shape) == 4 and shape[0] == shape[1] >= 8
    return is_square and shape[2] <= 4 and len(x.view.reduction_axes) == 3


def _has_sides_of_vocabulary(x: Doubtful) -> str | None:
    sides = sides_of(x.view)
    if x.view.batch > 1 or x.tree.count_of_sides[sides] > 1 or side_by_name(x.path):
        return None
    return x.tree.vocabularies.get(sides) if max(sides) >= _SMALL_VOCABULARY else None


def _is_longest(x: Doubtful) -> int | None:
    path, longest = x.tree.longest
    if x.path != path or len(x.view.shape) > 2 or side_by_name(path):
        return None
    return longest if x.view.rows >= 2 * longest else None


def _has_many_matrices(x: Doubtful) -> str | None:
    low, high = sides_of(x.view)
    is_thin = low < 8 and x.view.batch >= 8 * low
    # Of one axis: layers of experts are many.
    most = max((x.view.shape[a] for a in x.view.batch_axes), default=1)
    if (most > max(high, 16) or is_thin) and not _LORA.search(x.path):
        return ", ".join(map(str, x.view.batch_axes))
    return None


_Row = tuple[Callable[[Doubtful], Any], str]

_NAMES: _Row = (_names_say_otherwise, "its axis names say {}")

_OF_OTHERS: tuple[_Row, ...] = (
    _NAMES,
    (_has_no_kernel_name, "matrices.by_path(include={}) makes it a matrix"),
    (
        _is_complex,
        "the methods take real matrices; hold its real and imaginary parts",
    ),
    (_has_one_input, "its name is not of depthwise ones: include={}"),
    (_is_head_of_many_axes, "it has more axes than an output head"),
)

_OF_MATRICES: tuple[_Row, ...] = (
    _NAMES,
    (_is_only_dense, "all others are convolutions: it may be an output head"),
    (
        _has_layers_on_axis_one,
        "axis 1 has {} entries in all leaves around it, perhaps layers",
    ),
    (
        _has_sections,
        "it may hold several matrices beside one another; separate them by numbers={}",
    ),
    (_is_like_router, "a `gate` of another width than its siblings may be a router"),
    (
        _may_be_transposed,
        "as in PyTorch it may be (out, in): numbers={{'weight': "
        "MatrixDimensionNumbers(-1, -2)}}, exclude='embed|lm_head'",
    ),
    (_may_embed_patches, "it may embed patches"),
    (
        _has_sides_of_vocabulary,
        "it has the sides of {} and may be an embedding or output head",
    ),
    (_is_longest, "no other side is longer than {}: it may be an output head"),
    (_has_many_matrices, "axis {} may not be of layers or experts"),
)


def _sections(path: str, cols: int, out: int, tree: Tree) -> Any:
    """Sizes of the matrices that a flat kernel may hold; None if it is one."""
    near = own_names(path)
    if _THREE.search(near):
        for shape in tree.beside(path, _OUT):
            heads = max((n for n in shape[-2:] if n < out), default=out)
            if 3 * heads != out and heads < out and (out - heads) % 2 == 0:
                return (heads, (out - heads) // 2, (out - heads) // 2)
        return 3 if out % 3 == 0 else "(q, k, v)"
    if _TWO.search(near):
        return 2
    if _CELL.search(path) and not _ONE_GATE.search(path) and out > cols:
        hidden = {cols, *(n for shape in tree.beside(path) for n in shape)}
        return next((k for k in (4, 3) if out % k == 0 and out // k in hidden), 4)
    if _MODULATION.search(path):
        return next((k for k in (9, 6, 3, 2) if out == k * cols), None)
    is_lone = side_by_name(path) or "lora" in near.lower()
    return 2 if not is_lone and _is_gated(cols, out, tree.beside(path)) else None


def _is_gated(cols: int, out: int, beside: Counter[Shape]) -> bool:
    """Whether the only other kernel beside it maps half of the outputs back."""
    if beside.total() != 1:
        return False
    (shape,) = beside
    return 2 * shape[-2] == out and shape[-1] == cols


def _is_flat(view: MatrixView) -> bool:
    """Whether a leaf has one axis of inputs and one of outputs, as one matrix."""
    is_flat = len(view.output_axes) == len(view.reduction_axes) == 1
    return is_flat and view.pieces[0].rows == view.rows


def _axes(view: MatrixView | None) -> Any:
    return view and (view.output_axes, view.reduction_axes)


def _quoted(path: str) -> str:
    """A path as an expression that matches it and the same path of other layers."""
    return repr(re.sub(r"(?<![^/_])\d+(?=/)", r"\\d+", re.escape(path)))
