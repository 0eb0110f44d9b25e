"""Warnings of decisions of the default rule that may be wrong."""

import re
import warnings
from collections.abc import Mapping
from typing import Any

import optax

from optax_matrix._paths import named_leaves
from optax_matrix.matrices._clauses import Doubtful, clause_of, shown
from optax_matrix.matrices._counted import read_from_names
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
    if views_of(decisions) and (paths := read_from_names(tree, found)):
        said.append(_count(len(paths)))
    if said:
        warnings.warn("\n".join(said), kind)  # noqa: B028 (shown once)


def _count(n: int) -> str:
    several = f"{n:,} parameters are" if n > 1 else "1 parameter is"
    return (
        f"{several} read from names; om.matrices.by_use(loss, params, batch) reads "
        f"{'them' if n > 1 else 'it'} from the model, and "
        "dimension_numbers=om.matrices.by_names accepts the names."
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

    Decisions by `dimension_numbers` are not doubted. Returns a clause for each
    doubtful parameter, by path.
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
        "Settle it by `dimension_numbers=`: matrices.infer(model) reads axis names, "
        "matrices.by_path(numbers={'name': MatrixDimensionNumbers(...)}) gives the "
        "axes, None in their place or matrices.by_path(exclude='name') the other "
        "optimizer.",
    ]
