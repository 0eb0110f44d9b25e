"""Which layer of a model each matrix belongs to."""

import itertools
import re
from collections import defaultdict

import numpy as np

from optax_matrix.matrices.names import SCANNED
from optax_matrix.matrices.view import MatrixView
from optax_matrix.stacks.layout import Layout, Member

_NUMBER = re.compile(r"(?<![^/_])\d+(?![^/])")  # As in layers/0 and layers_0.
_EXPERTS = re.compile("expert", re.IGNORECASE)
_OF_EXPERTS = re.compile(r"experts?[/_]\*$", re.IGNORECASE)


def layers_of(layout: Layout) -> tuple[dict[Member, np.ndarray], int]:
    """The layer of each matrix of each member, -1 without one, and how many there are.

    `residual_sets` says how layers are found. An order that is not known is an error.
    """
    numbers = _numbers(layout)
    numbered = any(found for _, found in numbers.values())
    axes = {p: _layer_axes(p, view, numbered) for p, view in layout.views.items()}
    _check_same_kind(layout, numbers, axes)
    members = [m for g in layout.groups.values() for m in g.members]
    keys = {
        m: _keys(m, layout.views[m.path], numbers[m.path][1], axes[m.path])
        for m in members
    }
    known = set(itertools.chain(*keys.values())) - {()}
    order = {key: i for i, key in enumerate(sorted(known))}
    rank = lambda found: np.array([order.get(key, -1) for key in found])
    return {m: rank(found) for m, found in keys.items()}, len(order)


def _numbers(layout: Layout) -> dict[str, tuple[str, tuple[int, ...]]]:
    """For each path the part of it that names a layer, as a pattern, and its numbers.

    A module that only reads or only writes the stream (`Dense_0`) is not a layer, nor
    is one that has the same number in all layers (`Attention_0`).
    """
    sides, seen = defaultdict(set), defaultdict(set)
    parts = {path: _numbered_parts(path) for path in layout.views}
    for path, found in parts.items():
        for part, name, number in found:
            sides[name, part].add(layout.views[path].residual)
            seen[name].add(number)
    whole = {name for (name, _), both in sides.items() if len(both) > 1} or set(seen)

    def of_layers(path: str) -> tuple[str, tuple[int, ...]]:
        pattern, numbers = "", ()
        for _, name, number in parts[path]:
            is_layer = name in whole and not _OF_EXPERTS.search(name)
            if is_layer and (not numbers or len(seen[name]) > 1):
                pattern, numbers = name, (*numbers, number)
        return pattern, numbers

    return {path: of_layers(path) for path in layout.views}


def _numbered_parts(path: str) -> list[tuple[str, str, int]]:
    """Each leading part that ends in a number, the same with stars, the number."""
    heads = [(path[: m.end()], int(m[0])) for m in _NUMBER.finditer(path)]
    return [(head, _NUMBER.sub("*", head), number) for head, number in heads]


def _layer_axes(path: str, view: MatrixView, numbered: bool) -> tuple[int, ...]:
    if view.layer_axes is not None:
        return view.layer_axes
    if numbered and not SCANNED.search(path):
        return ()
    experts = _EXPERTS.search(path) is not None
    return view.batch_axes[: len(view.batch_axes) - experts][:1]


def _check_same_kind(layout: Layout, numbers: dict, axes: dict) -> None:
    """Raises unless all layers are numbered in one way: two lists have no order."""
    kinds: dict[tuple, str] = {}
    for path, view in layout.views.items():
        sizes = tuple(view.shape[a] for a in axes[path])
        scanned = SCANNED.search(path) if sizes else None
        name = numbers[path][0] or (path[: scanned.end()] if scanned else "")
        if name or sizes:
            kinds.setdefault((name, sizes), path)
    if len(kinds) > 1:
        shown = (
            path + (f" (layers on axes {axes[path]})" if axes[path] else "")
            for path in kinds.values()
        )
        raise ValueError(
            "`sharing` must be 'global' where the order of the layers is not known, "
            f"got 'chain': there are several lists of layers, {', '.join(shown)}; or "
            "name their axes for matrices.infer(model), or set `layer_axis` in "
            "MatrixDimensionNumbers."
        )


def _keys(
    member: Member, view: MatrixView, numbers: tuple[int, ...], axes: tuple[int, ...]
) -> list[tuple[int, ...]]:
    """Sort keys of the layers: the numbers of the path, then those of the axes."""
    sizes = [view.shape[a] for a in view.batch_axes]
    each = np.repeat(np.arange(view.batch), member.count // view.batch)
    index = np.unravel_index(each, sizes) if sizes else ()
    columns = [index[view.batch_axes.index(a)].tolist() for a in axes]
    rows = zip(*columns, strict=True) if axes else [()] * member.count
    return [(*numbers, *row) for row in rows]
