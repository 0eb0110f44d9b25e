"""Sets of matrices that are at the same position of the residual stream."""

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from optax_matrix.matrices.names import RESIDUAL
from optax_matrix.stacks._layers import layers_of
from optax_matrix.stacks.layout import Group, Layout, identities


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
    sets. Inside the step of sharded owners the arrays are traced.
    """
    groups = layout.groups.values()
    _check_sides(layout)
    if sharing == "global" or not groups:
        return {g.name: jnp.zeros(g.count, jnp.int32) for g in groups}, 1
    layers, depth = layers_of(layout)
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
    same = jnp.all(jnp.asarray(group.ids)[:, None] == np.concatenate(known), axis=-1)
    return jnp.sum(same * places.astype(np.int32), axis=-1, dtype=jnp.int32)
