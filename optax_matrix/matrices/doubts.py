"""Warnings of decisions that a model's author may not have meant."""

import re
import warnings
from collections import Counter
from collections.abc import Mapping
from typing import Any

import optax

from optax_matrix._paths import named_leaves
from optax_matrix.matrices._infer import infer
from optax_matrix.matrices._siblings import STACK_OF_VECTORS
from optax_matrix.matrices._suspects import suspects
from optax_matrix.matrices._words import name_of
from optax_matrix.matrices.boxes import boxes_of
from optax_matrix.matrices.decisions import (
    Decision,
    Decisions,
    decide,
    refuse_unmatched,
    views_of,
)
from optax_matrix.matrices.names import side_by_name
from optax_matrix.matrices.rules import warn_of_unmatched
from optax_matrix.matrices.shares import VOCABULARY, few_matrices
from optax_matrix.matrices.view import MatrixView

_SHOWN = 8
_SMALL_VOCABULARY = 64
_LAYER = re.compile(r"(?<![^/_])\d+(?=/)")
_LORA = re.compile("lora", re.IGNORECASE)


class DoubtfulMatrixWarning(UserWarning):
    """The default rule reads parameters as their model may not mean them."""


def warn_of_mistakes(
    dimension_numbers: Any, params: Any, decisions: Mapping[str, Decision]
) -> None:
    """Warns of expressions that match nothing, and of doubtful or few matrices."""
    is_masked = lambda x: isinstance(x, optax.MaskedNode)
    leaves = named_leaves(params, is_leaf=lambda x: x is None or is_masked(x))
    if not leaves:
        return
    if any(map(is_masked, leaves.values())):  # Another optimizer has these.
        _warn_of_absent(decisions)
        return
    warn_of_unmatched(dimension_numbers, leaves)
    refuse_unmatched(dimension_numbers, params, leaves)
    few, found = few_matrices(leaves, decisions), doubts(params, decisions)
    said = [few] if few else []
    if said := said + ([_message(found, decisions)] if found else []):
        warnings.warn("\n".join(said), DoubtfulMatrixWarning)  # noqa: B028 (shown once)


def _warn_of_absent(decisions: Decisions) -> None:
    """Warns where leaves that are masked could tell how others are read."""
    guesses = {path: d for path, d in decisions.items() if d.is_guess}

    def may_differ(path: str, view: MatrixView) -> bool:
        name, axes = name_of(path).name, len(view.shape)
        # Kernels of four axes are convolutions of Flax.
        return "weight" in name if axes == 2 else axes == 3 or name != "kernel"

    unclear = [path for path, d in guesses.items() if d.reason == STACK_OF_VECTORS]
    unclear += [path for path, v in views_of(guesses).items() if may_differ(path, v)]
    if unclear:
        lines = [f"  {path}: {_shown(decisions[path])}" for path in unclear[:_SHOWN]]
        told = [
            "These parameters are read without those that optax.partition or "
            "optax.masked leave out, such as biases and embeddings, which may tell "
            "their axes:",
            *lines,
            "Pass dimension_numbers=matrices.by_path()(params), made of all "
            "parameters, to the recipe and to matrices.label_params.",
        ]
        warnings.warn("\n".join(told), DoubtfulMatrixWarning, stacklevel=2)


def doubts(params: Any, decisions: Decisions) -> dict[str, str]:
    """What speaks against decisions of the default rule.

    A decision is doubtful if

    - the axis names of the parameter contradict it;
    - there are more matrices than the longer side has entries, and more than 16, or 8
      times as many as a shorter side of fewer than 8 (LoRA factors excepted);
    - no other matrix has its sides, but the embedding or output head has, and its name
      does not tell what it is;
    - it has at least twice as many outputs as any side of four or more other matrices,
      and its name does not tell what it is;
    - it may hold several matrices beside one another (`qkv_proj`, gates), be
      ``(out, in)``, have layers on axis 1, be a router or embed patches;
    - it is no matrix only because its name is not one of kernels, or it is complex.

    Decisions that `dimension_numbers` make are not doubted. Returns a clause for each
    doubtful parameter, by path.
    """
    leaves = named_leaves(params)
    guesses = {path: d for path, d in decisions.items() if d.is_guess}
    found = _many(guesses) | _long(guesses) | _like_vocabularies(guesses, leaves)
    found |= suspects(guesses, leaves)
    return found | _misnamed(guesses, params)


def _message(found: Mapping[str, str], decisions: Decisions) -> str:
    alike: dict[str, list[str]] = {}
    for path in found:
        alike.setdefault(_LAYER.sub("#", path), []).append(path)

    def line(paths: list[str]) -> str:
        path, others = paths[0], len(paths) - 1
        more = f" ({others} more like it)" if others else ""
        return f"  {path}: {_shown(decisions[path])}, but {found[path]}{more}"

    more = [f"  and {len(alike) - _SHOWN} more"] if len(alike) > _SHOWN else []
    return "\n".join(
        [
            "Are these parameters read as the model means them?",
            *map(line, list(alike.values())[:_SHOWN]),
            *more,
            "Settle it by `dimension_numbers=`: matrices.infer(model) reads axis "
            "names, matrices.by_path(numbers={'name': MatrixDimensionNumbers(...)}) "
            "gives the axes, None in their place or matrices.by_path(exclude='name') "
            "the other optimizer.",
        ]
    )


def _shown(decision: Decision) -> str:
    view = "no matrix" if decision.view is None else str(decision.view)
    return f"{view} ({decision.reason})"


def _many(guesses: Decisions) -> dict[str, str]:
    found = {}
    for path, view in views_of(guesses).items():
        low, high = sorted((view.rows, view.cols))
        is_thin = low < 8 and view.batch >= 8 * low
        # Of one axis: layers of experts are many.
        most = max((view.shape[a] for a in view.batch_axes), default=1)
        if (most > max(high, 16) or is_thin) and not _LORA.search(path):
            axes = ", ".join(map(str, view.batch_axes))
            found[path] = f"axis {axes} may not be of layers or experts"
    return found


def _long(guesses: Decisions) -> dict[str, str]:
    views = views_of(guesses)
    by_side = sorted(views, key=lambda path: max(views[path].rows, views[path].cols))
    if len(by_side) < 5:
        return {}
    *others, last = by_side
    view, longest = views[last], max(views[others[-1]].rows, views[others[-1]].cols)
    if view.rows < 2 * longest or len(view.shape) > 2 or side_by_name(last):
        return {}
    return {last: f"no other side is longer than {longest}: it may be an output head"}


def _like_vocabularies(guesses: Decisions, leaves: Mapping[str, Any]) -> dict[str, str]:
    views = {p: v for p, v in views_of(guesses).items() if v.batch == 1}
    sides = {path: tuple(sorted((v.rows, v.cols))) for path, v in views.items()}
    counts = Counter(sides.values())
    named = [p for p, r in guesses.items() if r.reason in VOCABULARY]
    like = {tuple(sorted(leaves[path].shape)): path for path in named}
    return {
        path: f"it has the sides of {like[s]} and may be an embedding or output head"
        for path, s in sides.items()
        if counts[s] == 1 and s in like and max(s) >= _SMALL_VOCABULARY
        if side_by_name(path) is None
    }


def _misnamed(guesses: Decisions, params: Any) -> dict[str, str]:
    boxes = boxes_of(params)
    by_names = decide(params, infer(params)) if boxes else {}
    found = {}
    for path, guess in guesses.items():
        named = by_names[path] if path in boxes else guess
        same = _matrix(named.view) == _matrix(guess.view)
        if named.reason != guess.reason and not same:
            found[path] = f"its axis names say {_shown(named)}"
    return found


def _matrix(view: MatrixView | None) -> Any:
    return view and (view.output_axes, view.reduction_axes)
