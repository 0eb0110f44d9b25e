"""Which matrices stand on the same place of the residual stream."""

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from optax_matrix.layout._layout import Group, Layout, Member, identities

SHARINGS = ("global", "chain")


def residual_sets(layout: Layout, sharing: str) -> tuple[dict[str, ArrayLike], int]:
    """Assigns every matrix to a set that shares one rotation of the residual stream.

    ``"global"`` is one set. ``"chain"`` has one for each place of the stream between
    layers: what reads it in layer l (of L, from 0) is in set l, what writes it in set
    l + 1; a reader without a layer, the head, is in set L, a writer without, the
    embedding, in set 0. The layer is the first number in a parameter's path, or the
    index along its first batch axis (scanned layers).

    Args:
        layout: A layout whose dimension numbers tell the residual sides.
        sharing: ``"global"`` or ``"chain"``.

    Returns:
        For each stack the set of each matrix, int32 ``(count,)``, and the number of
        sets. Inside the step of sharded owners the arrays are traced.

    Raises:
        ValueError: If the residual side or the layer of a matrix is not known, or the
            residual sides differ in size.
    """
    groups = layout.groups.values()
    _check_sides(layout)
    if sharing == "global" or not groups:
        return {g.name: jnp.zeros(g.count, jnp.int32) for g in groups}, 1
    layers = {g.name: [_layers(layout, m) for m in g.members] for g in groups}
    known = [i for rows in layers.values() for row in rows for i in row if i >= 0]
    if not known:
        raise ValueError(
            "`sharing` must be 'global' for parameters without layers, got 'chain': no "
            "path has a number in it and no leaf a batch axis."
        )
    depth = max(known) + 1
    table = {g.name: _places(g, layers[g.name], depth) for g in groups}
    return {g.name: _look_up(g, table[g.name]) for g in groups}, depth + 1


def residual_width(group: Group) -> int:
    """The size of a group's residual side."""
    return group.rows if group.residual == "out" else group.cols


def _check_sides(layout: Layout) -> None:
    groups = layout.groups.values()
    unknown = [m.path for g in groups if g.residual is None for m in g.members]
    if unknown:
        raise ValueError(
            "`sharing` needs to know which side of each matrix is on the residual "
            f"stream, but not for {', '.join(unknown[:3])}; pass dimension_numbers="
            "layout.infer(model), or MatrixDimensionNumbers(..., residual='in')."
        )
    widths = {residual_width(g): g.members[0].path for g in groups}
    if len(widths) > 1:
        raise ValueError(
            "`sharing` needs residual sides of one size, got "
            f"{', '.join(f'{n} ({path})' for n, path in widths.items())}; leave the "
            "others to the other optimizer (layout.by_path(exclude=...))."
        )


def _layers(layout: Layout, member: Member) -> np.ndarray:
    """The layer of each matrix of a member; -1 where there is none."""
    numbers = [int(part) for part in member.path.split("/") if part.isdigit()]
    if numbers:
        return np.full(member.count, numbers[0])
    axes, shape = layout.views[member.path].batch_axes, layout.views[member.path].shape
    if not axes:
        return np.full(member.count, -1)
    return np.arange(member.count) // (member.count // shape[axes[0]])


def _places(group: Group, layers: list[np.ndarray], depth: int) -> np.ndarray:
    rows = np.concatenate(layers)
    if group.residual == "in":
        return np.where(rows < 0, depth, rows)
    return rows + 1


def _look_up(group: Group, places: np.ndarray) -> ArrayLike:
    """The place of each matrix of the stack, found by its identity."""
    known = [identities(m.path, m.piece, np.arange(m.count)) for m in group.members]
    same = jnp.all(jnp.asarray(group.ids)[:, None] == np.concatenate(known), axis=-1)
    return jnp.sum(same * places.astype(np.int32), axis=-1, dtype=jnp.int32)
