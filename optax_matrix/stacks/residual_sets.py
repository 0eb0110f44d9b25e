"""Sets of matrices that are at the same position of the residual stream."""

import itertools
import re
from collections import defaultdict
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from optax_matrix.matrices.names import RESIDUAL, SCANNED
from optax_matrix.matrices.view import MatrixView
from optax_matrix.stacks.identities import identities
from optax_matrix.stacks.layout import Group, Layout, Member

_NUMBER = re.compile(r"(?<![^/_])\d+(?![^/])")  # As in layers/0 and layers_0.
_EXPERTS = re.compile("expert", re.IGNORECASE)
_OF_EXPERTS = re.compile(r"experts?[/_]\*$", re.IGNORECASE)


def residual_sets(layout: Layout, sharing: str) -> tuple[dict[str, ArrayLike], int]:
    """Assigns every matrix to a set that shares one rotation of the residual stream.

    ``"global"`` is one set. ``"chain"`` has one set for each position of the stream
    between layers: matrices that read the stream in layer l (of L, from 0) are in set
    l, those that write it in set l + 1. A reader without a layer, the head, is in set
    L, a writer without a layer, the embedding, in set 0.

    Layers are found by the numbers in a parameter's path, as in ``layers/0/up/kernel``
    or ``layers_0/up/kernel``; several numbers count in their order
    (``stages/0/layers/1``). A number counts if the module that it names both reads and
    writes the stream and is not an expert. After the numbers comes the index along the
    axes that dimension numbers give as ``layer_axis`` (`infer` finds them by name). If
    ``layer_axis`` is unknown, the axis of layers is the first batch axis that is not of
    experts, for parameters without numbers and for those whose path says that they are
    scanned.

    Returns for each stack the set of each matrix, int32 ``(count,)``, and the number of
    sets. Arrays are NumPy's, but traced ones inside the step of sharded owners.
    """
    groups = layout.groups.values()
    _check_sides(layout)
    if sharing == "global" or not groups:
        return {g.name: np.zeros(g.count, np.int32) for g in groups}, 1
    layers, depth = _layers_of(layout)
    if not depth:
        raise ValueError(
            "`sharing` must be 'global' for parameters without layers, got 'chain': no "
            "path contains the number of a layer (layers/0, layers_0), and no leaf has "
            "an axis of layers."
        )
    rows = {g.name: np.concatenate([layers[m] for m in g.members]) for g in groups}
    table = {g.name: _places(g, rows[g.name], depth) for g in groups}
    return {g.name: _look_up(g, table[g.name]) for g in groups}, depth + 1


def residual_width(group: Group) -> int:
    """The size of a group's residual side."""
    return group.rows if group.residual == "out" else group.cols


def _check_sides(layout: Layout) -> None:
    groups = layout.groups.values()
    unknown = [m.path for g in groups if g.residual is None for m in g.members]
    if unknown:
        seen = ", ".join(f"{path} {layout.views[path].shape}" for path in unknown[:3])
        raise ValueError(
            "`sharing` needs to know which side of each matrix is on the residual "
            f"stream, but it is unknown for {seen}; matrices.infer(model) finds it "
            "where either the first or the last axis of the matrix has one of the "
            f"logical names {', '.join(RESIDUAL)} (or those of its `residual`), "
            "otherwise pass MatrixDimensionNumbers(..., residual='in')."
        )
    widths = {residual_width(g): g.members[0].path for g in groups}
    if len(widths) > 1:
        raise ValueError(
            "`sharing` needs residual sides of one size, got "
            f"{', '.join(f'{n} ({path})' for n, path in widths.items())}; leave the "
            "others to the other optimizer (matrices.by_path(exclude=...))."
        )


def _places(group: Group, layers: np.ndarray, depth: int) -> np.ndarray:
    if group.residual == "in":
        return np.where(layers < 0, depth, layers)
    return layers + 1


def _look_up(group: Group, places: np.ndarray) -> ArrayLike:
    """The place of each matrix of the stack, found by its identity."""
    known = [identities(m.path, m.piece, np.arange(m.count)) for m in group.members]
    xp: Any = np if isinstance(group.ids, np.ndarray) else jnp
    same = xp.all(xp.asarray(group.ids)[:, None] == np.concatenate(known), axis=-1)
    return xp.sum(same * places.astype(np.int32), axis=-1, dtype=np.int32)


def _layers_of(layout: Layout) -> tuple[dict[Member, np.ndarray], int]:
    """The layer of each matrix of each member, -1 without one, and how many there are.

    `residual_sets` documents how layers are found. An unknown order is an error.
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
