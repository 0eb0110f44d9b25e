"""What may be wrong with a decision of the default rule: a list of tests and clauses.

`clause_of` goes through the list and returns the clause of the first test that holds.
"""

import re
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from optax_matrix.matrices._facts import Tree
from optax_matrix.matrices._scopes import Shape
from optax_matrix.matrices._siblings import NO_NAME
from optax_matrix.matrices._words import OTHERS, VOCABULARIES, own_names, why_other
from optax_matrix.matrices.decisions import Decision
from optax_matrix.matrices.names import side_by_name
from optax_matrix.matrices.view import MatrixView

_PLAIN = (
    "kernel (in, out)",
    "kernels (..., in, out), batch first",
    "a convolution (..., in, out)",
    "a side of length one",
)

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
_MODULATION = re.compile(r"modulation|ada_?(ln|layer_?norm|norm)", re.IGNORECASE)
_OUT = re.compile(r"(^|/)(o|[^/]*out|c|proj)(_proj)?(/|$)", re.IGNORECASE)


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
    is_kernel = why_other(x.path, VOCABULARIES + OTHERS) is None
    several = len(x.tree.leaves[x.path].shape) > 1
    return is_kernel and several and x.reason.startswith("dtype complex")


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


def _may_be_transposed(x: Doubtful) -> str | None:
    if x.reason not in _PLAIN or not x.tree.siblings.is_of_unknown_side(x.path):
        return None
    shape, first = x.tree.leaves[x.path].shape, x.tree.siblings.layers(x.path)
    if sum(n > 1 for n in shape) < 2:
        return None
    into: Any = tuple(range(first + 1, len(shape)))
    if len(into) == 2 and shape[-1] >= shape[-2]:  # No width of a convolution.
        into, first = (len(shape) - 1,), len(shape) - 2
    into = into if len(into) > 1 else into[0]
    return f"{{{_quoted(x.path)}: MatrixDimensionNumbers({into}, {first})}}"


def _has_many_matrices(x: Doubtful) -> str | None:
    low, high = sorted((x.view.rows, x.view.cols))
    is_thin = low < 8 and x.view.batch >= 8 * low
    # Of one axis: layers of experts are many.
    most = max((x.view.shape[a] for a in x.view.batch_axes), default=1)
    if (most > max(high, 16) or is_thin) and "LoRA" not in x.reason:
        return ", ".join(map(str, x.view.batch_axes))
    return None


_Row = tuple[Callable[[Doubtful], Any], str]

_NAMES: _Row = (_names_say_otherwise, "its axis names say {}")

_TRANSPOSED: _Row = (
    _may_be_transposed,
    "as in PyTorch it may be (out, in, ...); if so, pass numbers={}",
)

_OF_OTHERS: tuple[_Row, ...] = (
    _NAMES,
    _TRANSPOSED,
    (_has_no_kernel_name, "matrices.by_path(include={}) makes it a matrix"),
    (
        _is_complex,
        "the methods take real matrices; hold its real and imaginary parts",
    ),
)

_OF_MATRICES: tuple[_Row, ...] = (
    _NAMES,
    (
        _has_layers_on_axis_one,
        "axis 1 has {} entries in all leaves around it, perhaps layers",
    ),
    (
        _has_sections,
        "it may hold several matrices beside one another; separate them by numbers={}",
    ),
    _TRANSPOSED,
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
    if _CELL.search(path) and out > cols:
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
