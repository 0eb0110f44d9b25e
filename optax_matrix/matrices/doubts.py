"""Warnings of decisions that a model's author may not have meant."""

import contextlib
import contextvars
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import optax

from optax_matrix.matrices._default_rule import default_rule
from optax_matrix.matrices._infer import infer
from optax_matrix.matrices.names import side_by_name
from optax_matrix.matrices.paths import named_leaves
from optax_matrix.matrices.rules import (
    PathRule,
    Resolved,
    resolve,
    warn_of_unmatched,
)
from optax_matrix.matrices.view import MatrixView, make_view

_SHOWN = 8
_VOCABULARY = ("an embedding by its name", "an output head by its name")
_SMALL_VOCABULARY = 64
_LORA = re.compile("lora", re.IGNORECASE)


class DoubtfulMatrixWarning(UserWarning):
    """The default rule reads a parameter as its model may not mean it."""


_DONE = contextvars.ContextVar("warned of mistakes", default=False)


@contextlib.contextmanager
def warned_of_mistakes(dimension_numbers: Any, params: Any) -> Iterator[None]:
    """Warns of mistakes, and keeps what runs inside from warning of them again."""
    warn_of_mistakes(dimension_numbers, params)
    token = _DONE.set(True)
    try:
        yield
    finally:
        _DONE.reset(token)


def warn_of_mistakes(dimension_numbers: Any, params: Any) -> None:
    """Warns of decisions on a whole tree that look like mistakes.

    Args:
        dimension_numbers: As in `on_matrices`. Expressions that match nothing give an
            `UnmatchedPatternWarning`.
        params: The parameters. Doubtful ones give one `DoubtfulMatrixWarning`.
    """
    is_masked = lambda x: isinstance(x, optax.MaskedNode)
    leaves = named_leaves(params, is_leaf=lambda x: x is None or is_masked(x))
    if _DONE.get() or not leaves or any(map(is_masked, leaves.values())):
        return  # Another optimizer has the other leaves.
    warn_of_unmatched(dimension_numbers, leaves)
    resolved = resolve(dimension_numbers, params)
    if found := doubts(params, resolved):
        warnings.warn(_message(found, resolved), DoubtfulMatrixWarning)  # noqa: B028 (shown once)


def doubts(params: Any, resolved: Mapping[str, Resolved]) -> dict[str, str]:
    """What speaks against decisions of the default rule.

    A decision is doubtful if

    - the axis names of the parameter contradict it;
    - there are more matrices than the longer side has entries, and more than 16, or 8
      times as many as a shorter side of fewer than 8 (LoRA factors excepted);
    - no other matrix has its sides, but the embedding or output head has, and its name
      does not tell what it is;
    - it has at least twice as many outputs as any side of four or more other matrices,
      and its name does not tell what it is.

    Decisions that `dimension_numbers` make are not doubted.

    Args:
        params: The parameters.
        resolved: The decision for each of them, by path.

    Returns:
        A clause for each doubtful parameter, by path.
    """
    leaves = named_leaves(params)
    reason = lambda path: default_rule(path, leaves[path])[1]
    guesses = {p: r for p, r in resolved.items() if r.reason == reason(p)}
    found = _many(guesses) | _long(guesses) | _like_vocabularies(guesses, leaves)
    return found | _misnamed(guesses, leaves, infer(params))


def _message(found: Mapping[str, str], resolved: Mapping[str, Resolved]) -> str:
    line = lambda path: f"  {path}: {_shown(resolved[path])}, but {found[path]}"
    more = [f"  and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
    return "\n".join(
        [
            "Are these parameters read as the model means them?",
            *map(line, list(found)[:_SHOWN]),
            *more,
            "Settle it by `dimension_numbers=`: matrices.infer(model) reads axis "
            "names, matrices.by_path(numbers={'name': MatrixDimensionNumbers(...)}) "
            "gives the axes, None in their place or matrices.by_path(exclude='name') "
            "the other optimizer.",
        ]
    )


def _shown(decision: Resolved) -> str:
    view = "no matrix" if decision.view is None else str(decision.view)
    return f"{view} ({decision.reason})"


def _many(guesses: Mapping[str, Resolved]) -> dict[str, str]:
    found = {}
    for path, view in _views(guesses).items():
        low, high = sorted((view.rows, view.cols))
        is_thin = low < 8 and view.batch >= 8 * low
        # Of one axis: layers of experts are many.
        most = max((view.shape[a] for a in view.batch_axes), default=1)
        if (most > max(high, 16) or is_thin) and not _LORA.search(path):
            axes = ", ".join(map(str, view.batch_axes))
            found[path] = f"axis {axes} may not be of layers or experts"
    return found


def _long(guesses: Mapping[str, Resolved]) -> dict[str, str]:
    views = _views(guesses)
    by_side = sorted(views, key=lambda path: max(views[path].rows, views[path].cols))
    if len(by_side) < 5:
        return {}
    *others, last = by_side
    view, longest = views[last], max(views[others[-1]].rows, views[others[-1]].cols)
    if view.rows < 2 * longest or len(view.shape) > 2 or side_by_name(last):
        return {}
    return {last: f"no other side is longer than {longest}: it may be an output head"}


def _like_vocabularies(
    guesses: Mapping[str, Resolved], leaves: Mapping[str, Any]
) -> dict[str, str]:
    views = {p: v for p, v in _views(guesses).items() if v.batch == 1}
    sides = {path: tuple(sorted((v.rows, v.cols))) for path, v in views.items()}
    counts = Counter(sides.values())
    named = [p for p, r in guesses.items() if r.reason in _VOCABULARY]
    like = {tuple(sorted(leaves[path].shape)): path for path in named}
    return {
        path: f"it has the sides of {like[s]} and may be an embedding or output head"
        for path, s in sides.items()
        if counts[s] == 1 and s in like and max(s) >= _SMALL_VOCABULARY
        if side_by_name(path) is None
    }


def _misnamed(
    guesses: Mapping[str, Resolved], leaves: Mapping[str, Any], by_names: PathRule
) -> dict[str, str]:
    found = {}
    for path, guess in guesses.items():
        numbers, reason = by_names.decide(path, leaves[path])
        view = numbers and make_view(leaves[path].shape, numbers, path)
        if reason != guess.reason and _matrix(view) != _matrix(guess.view):
            found[path] = f"its axis names say {_shown(Resolved(view, reason))}"
    return found


def _views(guesses: Mapping[str, Resolved]) -> dict[str, MatrixView]:
    return {path: r.view for path, r in guesses.items() if r.view is not None}


def _matrix(view: MatrixView | None) -> Any:
    return view and (view.output_axes, view.reduction_axes)
