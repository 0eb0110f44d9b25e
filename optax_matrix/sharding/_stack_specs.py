"""Specs of the state of stacks that are sharded like their first leaves."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from optax_matrix._paths import group_of, key_name
from optax_matrix.matrices.batch_names import likeliest
from optax_matrix.matrices.view import MatrixView
from optax_matrix.stacks.layout import Group, Layout

Axes = tuple[str, ...]  # The names on one axis of an array.


def stack_specs(
    layout: Layout, state: Any, specs: Mapping[str, Sequence], mesh: Any
) -> Any:
    """The specs of a state, each stack sharded by the names of its first leaf.

    A name goes to the axis of the state that is the leaf's: its rows, its columns, its
    batch (of several logical names there, the one that is split most often). If that
    axis does not exist (the reduced side of row statistics), was merged or split away,
    or cannot be divided by the mesh, the name goes to the first axis that can. Names
    that are no axes of the mesh are only carried over.

    All state of a stack has the same such name first on its batch axis. XLA computes
    wrong numbers where a batched product takes one axis of the mesh from the batch and
    puts another, summed over, there (jaxlib 0.10.2).

    Indices, such as POET's permutations, are replicated: XLA cannot compile a gather
    that has one axis of the mesh both on its indices and on the rest of its operand
    (jaxlib 0.10.2, 0.12.0).
    """
    sizes = {} if mesh is None else dict(mesh.shape)

    def of_leaf(keys, x):
        group = group_of(keys, layout.groups)
        if group is None or not is_sharded(keys, x, group):
            return PartitionSpec(*[None] * len(x.shape))
        wanted, every = _names(layout, group, specs, sizes)
        return _spec(x.shape, group, wanted, every, sizes)

    return jax.tree_util.tree_map_with_path(of_leaf, state)


def is_sharded(keys: tuple, x: Any, group: Group) -> bool:
    """Whether state is per matrix, with as many numbers as a side of one at least."""
    per_matrix = len(x.shape) > 1 and x.shape[0] == group.count
    large = math.prod(x.shape[1:]) >= min(group.rows, group.cols)
    is_index = x.dtype == jnp.int32
    return per_matrix and large and not is_index and key_name(keys[0]) != "manifest"


def _names(
    layout: Layout,
    group: Group,
    specs: Mapping[str, Sequence],
    sizes: Mapping[str, int],
) -> tuple[tuple[Axes, Axes, Axes], Axes]:
    """Names of ``(batch, out, in)`` of a stack, and all names of its first leaf."""
    views = [layout.views[member.path] for member in group.members]
    given = [tuple(specs.get(member.path, ())) for member in group.members]
    pairs = zip(views, given, strict=True)
    stacks = [_view_names(view, spec, sizes) for view, spec in pairs]
    batch, rows, cols = stacks[0]
    # The sum of the leaves' batches is divided by what divides each.
    batch = batch if all(stack[0] == batch for stack in stacks) else ()
    return (batch, rows, cols), tuple(x for entry in given[0] for x in _axes(entry))


def _view_names(
    view: MatrixView, spec: tuple, sizes: Mapping[str, int]
) -> tuple[Axes, Axes, Axes]:
    """Names of ``(batch, out, in)``, of all batch axes if they are axes of the mesh.

    Of logical names, which a framework translates, only one can be on an axis.
    """
    _, rows, cols = map(_axes, view.spec_of_piece(spec))
    if not spec or view.output_sections != 1 or view.reduction_sections != 1:
        return (), rows, cols
    given = (spec[a] for a in view.batch_axes if a < len(spec) and view.shape[a] > 1)
    batch = tuple(name for entry in given for name in _axes(entry))
    if len(batch) > 1 and not all(name in sizes for name in batch):
        batch = (likeliest(batch),)
    return batch, rows, cols


def _spec(
    shape: tuple[int, ...],
    group: Group,
    wanted: tuple[Axes, Axes, Axes],
    every: Axes,
    sizes: Mapping[str, int],
) -> PartitionSpec:
    batch, rows, cols = wanted
    entries: list[Axes] = [()] * len(shape)
    left = list(every)
    first = _first_on_batch(shape[0], batch, every, sizes)

    def put(axis: int, names: Axes, known: bool) -> bool:
        """Gives free names to an axis, all or none."""
        new = entries[axis] + names
        shards = [sizes[x] for x in new if x in sizes]
        divides = shape[axis] % math.prod(shards) == 0
        fits = divides if len(shards) == len(new) else known
        if not names or not fits or any(x not in left for x in names):
            return False
        if axis == 0 and not known and first not in new:
            return False
        entries[axis] = new
        for x in names:
            left.remove(x)
        return True

    put(0, batch, known=True)
    for axis, size in enumerate(shape[1:], 1):
        # Of a square matrix's Gram matrix, rows come before columns.
        sides = [
            names for n, names in ((group.rows, rows), (group.cols, cols)) if n == size
        ]
        if shape[1:] == (group.rows, group.cols):
            sides = [(rows, cols)[axis - 1]]
        any(put(axis, names, known=True) for names in sides)
    for name in tuple(left):
        free_first = sorted(range(len(shape)), key=lambda axis: len(entries[axis]))
        any(put(axis, (name,), known=False) for axis in free_first)
    return PartitionSpec(*(x if len(x) > 1 else x[0] if x else None for x in entries))


def _first_on_batch(
    count: int, batch: Axes, every: Axes, sizes: Mapping[str, int]
) -> str | None:
    """The name that must be the first to be added to the batch axis of a stack."""
    known = math.prod(sizes.get(x, 1) for x in batch)
    others = (x for x in every if x not in batch and x in sizes)
    return next((x for x in others if count % (known * sizes[x]) == 0), None)


def _axes(entry: Any) -> Axes:
    if entry is None or entry is PartitionSpec.UNCONSTRAINED:
        return ()
    return tuple(entry) if isinstance(entry, (tuple, list)) else (entry,)
