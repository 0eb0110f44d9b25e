"""Warnings of decisions of the default rule that may be wrong."""

import re
import warnings
from collections.abc import Mapping
from typing import Any

import optax

from optax_matrix._paths import named_leaves
from optax_matrix.matrices._clauses import Doubtful, clause_of, shown
from optax_matrix.matrices._facts import Tree
from optax_matrix.matrices._siblings import STACK_OF_VECTORS
from optax_matrix.matrices._words import name_of
from optax_matrix.matrices.decisions import (
    Decision,
    Decisions,
    refuse_unmatched,
    views_of,
)
from optax_matrix.matrices.names import Guess
from optax_matrix.matrices.rules import warn_of_unmatched
from optax_matrix.matrices.shares import few_matrices
from optax_matrix.matrices.view import MatrixView

_SHOWN = 5
_LAYER = re.compile(r"(?<![^/_])\d+(?=/)")


class ReadFromNamesWarning(UserWarning):
    """Nothing but their names and shapes tells what these parameters are."""


class DoubtfulMatrixWarning(ReadFromNamesWarning):
    """The default rule may have misread these parameters."""


def warn_of_mistakes(
    dimension_numbers: Any, params: Any, decisions: Mapping[str, Decision]
) -> None:
    """Warns of expressions that match nothing, and of what is not certain.

    All that is not certain is in one warning: few or doubtful matrices, and the number
    of parameters that are read from their names alone.
    """
    is_masked = lambda x: isinstance(x, optax.MaskedNode)
    leaves = named_leaves(params, is_leaf=lambda x: x is None or is_masked(x))
    if not leaves:
        return
    tree, found = Tree(params, decisions), {}
    if any(map(is_masked, leaves.values())):  # Another optimizer has these.
        said = _of_absent(decisions)
    else:
        warn_of_unmatched(dimension_numbers, leaves)
        refuse_unmatched(dimension_numbers, params, leaves)
        few, found = few_matrices(leaves, decisions), _doubts(tree)
        said = [few] if few else []
        said += _of_doubts(found, decisions) if found else []
    kind = DoubtfulMatrixWarning if said else ReadFromNamesWarning
    if views_of(decisions) and (paths := _uncertain(tree, found)):
        said.append(_count(paths))
    if said:
        warnings.warn("\n".join(said), kind)  # noqa: B028 (shown once)


def read_from_names(params: Any, decisions: Decisions) -> list[str]:
    """The paths of the guesses that nothing confirms, or that are doubtful."""
    tree = Tree(params, decisions)
    return _uncertain(tree, _doubts(tree))


def _uncertain(tree: Tree, found: Mapping[str, str]) -> list[str]:
    return [path for path in tree.guesses if path in found or not tree.is_certain(path)]


def _count(paths: list[str]) -> str:
    """How many parameters are read from names, and which if they are few."""
    named = f" ({', '.join(paths)})" if len(paths) <= _SHOWN else ""
    return (
        f"Parameters read from names: {len(paths):,}{named}. To read them from the "
        "model, pass dimension_numbers=om.matrices.by_use(loss, params, batch). To "
        "accept the names, pass dimension_numbers=om.matrices.by_names."
    )


def _of_absent(decisions: Decisions) -> list[str]:
    """What to say if masked leaves could change how others are read."""
    guesses = {p: d for p, d in decisions.items() if isinstance(d.reason, Guess)}

    def may_differ(path: str, view: MatrixView) -> bool:
        name, axes = name_of(path).name, len(view.shape)
        # Kernels of four axes are convolutions of Flax.
        return "weight" in name if axes == 2 else axes == 3 or name != "kernel"

    unclear = [path for path, d in guesses.items() if d.reason == STACK_OF_VECTORS]
    unclear += [path for path, v in views_of(guesses).items() if may_differ(path, v)]
    if not unclear:
        return []
    return [
        "These parameters are read without those that optax.partition or optax.masked "
        "leave out, such as biases and embeddings, which may show their axes:",
        *(f"  {path}: {shown(decisions[path])}" for path in unclear[:_SHOWN]),
        "Pass dimension_numbers=matrices.by_path()(params), made of all parameters, to "
        "the recipe and to matrices.label_params.",
    ]


def doubts(params: Any, decisions: Decisions) -> dict[str, str]:
    """What may be wrong with decisions of the default rule.

    Decisions by `dimension_numbers` are not doubted. Returns a clause for each doubtful
    parameter, by path; `_clauses` has the list of them.
    """
    return _doubts(Tree(params, decisions))


def _doubts(tree: Tree) -> dict[str, str]:
    clauses = {
        path: clause_of(Doubtful(tree, path, guess.view, guess.reason))
        for path, guess in tree.guesses.items()
    }
    return {path: clause for path, clause in clauses.items() if clause is not None}


def _of_doubts(found: Mapping[str, str], decisions: Decisions) -> list[str]:
    alike: dict[str, list[str]] = {}
    for path in found:
        alike.setdefault(_LAYER.sub("#", path), []).append(path)

    def line(paths: list[str]) -> str:
        path, others = paths[0], len(paths) - 1
        more = f" ({others} more like it)" if others else ""
        return f"  {path}: {shown(decisions[path])}, but {found[path]}{more}"

    more = [f"  and {len(alike) - _SHOWN} more"] if len(alike) > _SHOWN else []
    return [
        "Check how these parameters are interpreted:",
        *map(line, list(alike.values())[:_SHOWN]),
        *more,
        "To correct them, pass dimension_numbers=om.matrices.by_path(numbers={'name': "
        "om.MatrixDimensionNumbers(...)}). None in place of the axes leaves a "
        "parameter to the other optimizer.",
    ]
