"""The ends of a model: which of the leaves are first layers, which the last one."""

import dataclasses
import math
import re
from typing import Any, Literal

from optax_matrix._paths import named_leaves
from optax_matrix.matrices._words import OTHERS, VOCABULARIES, why_other
from optax_matrix.matrices.decisions import decide, views_of
from optax_matrix.matrices.leaves import leaves_in_tree
from optax_matrix.matrices.names import numbers_of_kernel
from optax_matrix.matrices.vectors import vectors_of
from optax_matrix.matrices.view import MatrixView, make_view
from optax_matrix.matrices.wider import with_embeddings

Place = Literal["first", "inner", "last", "tied", "vector"]
_EMBEDDINGS, _, _HEADS = ((entry,) for entry in VOCABULARIES)
_TABLES = OTHERS[-1:]


@dataclasses.dataclass(frozen=True)
class End:
    """Where in the model a leaf is, and its `MatrixView`, which is None for a vector.

    Embeddings, tables and tokens are ``"first"``, heads ``"last"``. Where no leaf is a
    head, the largest embedding is one as well, ``"tied"``: its view is that of a head.
    """

    place: Place
    view: Any


def ends_of(
    params: Any,
    first: str | None = None,
    last: str | None = None,
    dimension_numbers: Any = None,
) -> dict[str, End]:
    """The place of each leaf, by path, from its name or from two regular expressions.

    Dimension numbers give the sides of embeddings and heads; None for the default rule.
    """
    told = leaves_in_tree(params, named_leaves(params))
    vectors = vectors_of(params)
    places: dict[str, Place] = {
        path: "vector" if path in vectors else _place(path, leaf, first, last)
        for path, leaf in told.items()
    }
    embeddings = [p for p in told if p not in vectors and _is_embedding(p, told[p])]
    if embeddings and not {"last", "tied"}.intersection(places.values()):
        largest = max(embeddings, key=lambda path: math.prod(told[path].shape))
        if first is None or not re.search(first, largest):
            places[largest] = "tied"
    full: Any = {}
    if dimension_numbers is not None:
        full = views_of(decide(params, with_embeddings(dimension_numbers)))
    default = lambda path, leaf: numbers_of_kernel(path, leaf)[0]
    view = lambda path, leaf: make_view(leaf.shape, default(path, leaf), path)
    found: dict[str, Any] = {
        path: None if path in vectors else full.get(path) or view(path, leaf)
        for path, leaf in told.items()
    }
    return {
        path: End(place, _turned(found[path]) if place == "tied" else found[path])
        for path, place in places.items()
    }


def _place(path: str, leaf: Any, first: str | None, last: str | None) -> Place:
    is_embedding = _is_embedding(path, leaf)
    if last is not None and re.search(last, path):
        return "tied" if is_embedding else "last"
    if first is not None and re.search(first, path):
        return "first"
    if why_other(path, _HEADS):
        return "last"
    return "first" if is_embedding or why_other(path, _TABLES) else "inner"


def _is_embedding(path: str, leaf: Any) -> bool:
    numbers, reason = getattr(leaf, "layer", None) or ((), "")
    by_layer = numbers is None and "embedding" in reason
    return by_layer or why_other(path, _EMBEDDINGS) is not None


def _turned(view: MatrixView) -> MatrixView:
    sides = {"output_axes": view.reduction_axes, "reduction_axes": view.output_axes}
    return dataclasses.replace(view, **sides)
