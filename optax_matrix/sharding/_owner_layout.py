"""The layout of whole matrices that are spread over owners."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import dtypes
from jax.sharding import PartitionSpec
from jaxtyping import Array

from optax_matrix.layout import FILLER, Group, Layout, MatrixView, Member
from optax_matrix.layout.groups import (
    chunks,
    default_batch,
    identities,
    make_group,
)
from optax_matrix.layout.paths import natural_order
from optax_matrix.sharding._exchange import Exchange
from optax_matrix.sharding._param_specs import Spec


@dataclasses.dataclass(frozen=True)
class Bundle:
    """Leaves that are exchanged together, and the positions of their pieces in stacks.

    Attributes:
        paths: The leaves.
        exchange: How their matrices are exchanged.
        places: For each piece of a matrix the name of its stack, its first position in
            the local stack, and its last position + 1.
    """

    paths: tuple[str, ...]
    exchange: Exchange
    places: tuple[tuple[str, int, int], ...]

    @property
    def matrix(self) -> MatrixView:
        """The view of one whole matrix, which may be split into sections."""
        return whole_matrix(self.exchange.view)


@dataclasses.dataclass(frozen=True)
class OwnerLayout(Layout):
    """A layout whose stacks are spread over the devices of the owner axes.

    ``groups`` describe whole stacks. Inside `shard_map`, `on_device` gives the layout
    of one device's matrices, the ``local`` of `Placement`; `stack` and `unstack` work
    only there.

    Attributes:
        bundles: The leaves, by what is exchanged together.
        mesh: The mesh, abstract while tracing.
        specs: Mesh axes of each axis of each matrix leaf, by path.
        inside: Mesh axes that split matrices and are not owner axes.
        is_local: Whether this is the layout of one device.
    """

    bundles: tuple[Bundle, ...]
    mesh: Any
    specs: Mapping[str, Spec]
    inside: tuple[str, ...]
    is_local: bool = False

    @property
    def axes(self) -> dict[str, tuple[str, ...]]:
        """For each stack the mesh axes that it is spread over inside `shard_map`."""
        return {n: g.spec[0] if self.is_local else () for n, g in self.groups.items()}

    def full_spec(self, path: str) -> PartitionSpec:
        """The partition spec of a leaf, in full rank."""
        return PartitionSpec(*(axes or None for axes in self.specs[path]))

    def moving_spec(self, path: str) -> PartitionSpec:
        """The partition spec of a leaf without the axes in `inside`."""
        return PartitionSpec(
            *(x or None for x in _without(self.specs[path], self.inside))
        )

    def on_device(self, ids: Mapping[str, Array]) -> "OwnerLayout":
        """The layout of one device's own matrices, which have these identities."""
        groups = {
            name: dataclasses.replace(group, count=len(ids[name]), ids=ids[name])
            for name, group in self.groups.items()
        }
        return dataclasses.replace(self, groups=groups, is_local=True)

    def part(self) -> "OwnerLayout":
        """The layout of as many matrices as one device has, to evaluate shapes with."""
        ways = lambda group: math.prod(self.mesh.shape[x] for x in group.spec[0])
        ids = {n: g.ids[: g.count // ways(g)] for n, g in self.groups.items()}
        return dataclasses.replace(self.on_device(ids), is_local=False)

    def stack(
        self, leaves: Mapping[str, Array], wire_dtype: Any = None
    ) -> dict[str, Array]:
        """Brings the parts of leaves, given by path, to this device's whole stacks."""
        parts: dict[str, list[Array]] = {}
        for bundle in self.bundles:
            own = [leaves[path] for path in bundle.paths]
            whole = bundle.exchange.to_owners(own, wire_dtype)
            pieces = bundle.matrix.to_matrices(whole)
            for (name, _, _), piece in zip(bundle.places, pieces, strict=True):
                parts.setdefault(name, []).append(piece)
        return {
            name: xs[0] if len(xs) == 1 else jnp.concatenate(xs)
            for name, xs in parts.items()
        }

    def unstack(self, stacks: Any, wire_dtype: Any = None) -> dict[str, Array]:
        """Sends this device's stacks back to the parts of the leaves."""
        leaves: dict[str, Array] = {}
        for bundle in self.bundles:
            pieces = [stacks[name][lo:hi] for name, lo, hi in bundle.places]
            whole = bundle.matrix.from_matrices(pieces)
            parts = bundle.exchange.from_owners(whole, wire_dtype)
            leaves |= dict(zip(bundle.paths, parts, strict=True))
        return leaves


def whole_matrix(view: MatrixView) -> MatrixView:
    """The view of one matrix of a leaf, with the leaf's sections."""
    return dataclasses.replace(
        view,
        shape=(view.rows, view.cols),
        batch_axes=(),
        output_axes=(0,),
        reduction_axes=(1,),
    )


def owner_layout(
    resolved: Mapping[str, Any],
    leaves: Mapping[str, Any],
    specs: Mapping[str, Spec],
    owners: tuple[str, ...],
    mesh: Any,
    *,
    max_batch: int | None = None,
) -> OwnerLayout:
    """Groups matrix leaves of equal view, dtype and spec, and gives them to owners.

    Args:
        resolved: The decision for each leaf, by path.
        leaves: The leaves (or their shapes), by path.
        specs: Mesh axes of each axis of each matrix leaf, by path.
        owners: Mesh axes whose devices own matrices.
        mesh: The mesh.
        max_batch: Largest number of matrices in a stack of one device.

    Returns:
        The layout. It is the same for the same arguments.
    """
    views = {p: r.view for p, r in resolved.items() if r.view is not None}
    inside = _inside(views, specs, owners)
    sizes = dict(mesh.shape) if views else {}
    pools: dict[tuple, list[str]] = {}
    for path in sorted(views, key=natural_order):
        dtype = dtypes.canonicalize_dtype(leaves[path].dtype)
        pools.setdefault((views[path], dtype, specs[path]), []).append(path)
    bundles, groups = [], {}
    for (view, dtype, spec), paths in pools.items():
        moving = _without(spec, inside)
        batch = tuple(x for a in view.batch_axes for x in moving[a])
        axes = owners + tuple(x for x in batch if x not in owners)
        devices = math.prod(sizes[x] for x in axes)
        limit = _matrices_per_device(view, max_batch) * devices
        for chunk in chunks(paths, limit, size=lambda _, view=view: view.batch):
            exchange = Exchange(view, moving, axes, sizes, len(chunk))
            stays = [tuple(x for x in entry if x in inside) for entry in spec]
            bundle, made = _bundle(chunk, exchange, dtype, stays)
            bundles.append(bundle)
            groups |= made
    return OwnerLayout(
        groups=groups,
        views=views,
        others={p: r.reason for p, r in resolved.items() if r.view is None},
        reasons={p: r.reason for p, r in resolved.items() if r.view is not None},
        bundles=tuple(bundles),
        mesh=mesh,
        specs=specs,
        inside=inside,
    )


def _inside(
    views: Mapping[str, MatrixView], specs: Mapping[str, Spec], owners: tuple[str, ...]
) -> tuple[str, ...]:
    """Mesh axes that split a matrix and are not owner axes."""
    cut = [
        x
        for path, view in views.items()
        for a in view.output_axes + view.reduction_axes
        for x in specs[path][a]
    ]
    return tuple(dict.fromkeys(x for x in cut if x not in owners))


def _without(spec: Spec, axes: Sequence[str]) -> Spec:
    return tuple(tuple(x for x in entry if x not in axes) for entry in spec)


def _pieces_by_shape(view: MatrixView) -> dict[tuple[int, int], list[int]]:
    """The pieces of a matrix that share a stack, by shape."""
    shapes: dict[tuple[int, int], list[int]] = {}
    for i, piece in enumerate(whole_matrix(view).pieces):
        shapes.setdefault((piece.rows, piece.cols), []).append(i)
    return shapes


def _matrices_per_device(view: MatrixView, max_batch: int | None) -> int:
    """Number of unsplit matrices for which no stack of a device exceeds its bound."""
    pieces = whole_matrix(view).pieces
    limits = [
        (max_batch or default_batch(*shape)) // sum(pieces[i].count for i in members)
        for shape, members in _pieces_by_shape(view).items()
    ]
    return max(1, min(limits))


def _bundle(
    paths: list[str], exchange: Exchange, dtype: Any, stays: list[tuple[str, ...]]
) -> tuple[Bundle, dict[str, Group]]:
    view, table = exchange.view, exchange.owned_by()
    pieces = whole_matrix(view).pieces
    places: dict[int, tuple[str, int, int]] = {}
    groups: dict[str, Group] = {}
    for (rows, cols), indices in _pieces_by_shape(view).items():
        blocks = [_identities(paths, view, i, pieces[i].count, table) for i in indices]
        ids = np.concatenate(blocks, axis=1).reshape(-1, 2)
        spec = view.spec_of_piece([x or None for x in stays])
        group = make_group(
            rows=rows,
            cols=cols,
            dtype=dtype,
            residual=view.residual,
            spec=(exchange.owners, *spec[1:]),
            members=_members(paths, view, indices),
            ids=ids,
        )
        groups[group.name] = group
        start = 0
        for i in indices:
            end = start + exchange.owned * pieces[i].count
            places[i] = group.name, start, end
            start = end
    ordered = tuple(places[i] for i in range(len(pieces)))
    return Bundle(tuple(paths), exchange, ordered), groups


def _identities(
    paths: list[str], view: MatrixView, piece: int, sections: int, table: np.ndarray
) -> np.ndarray:
    """Identities ``(devices, places, 2)`` of one piece of the matrices in `table`."""
    index = np.arange(view.batch * sections)
    known = np.stack([identities(path, piece, index) for path in paths])
    known = known.reshape(len(paths) * view.batch, sections, 2)
    filler = np.broadcast_to(np.array(FILLER, np.uint32), (1, sections, 2))
    rows = np.concatenate([known, filler])[table]  # Index -1 is the filler.
    return rows.reshape(len(table), -1, 2)


def _members(paths: list[str], view: MatrixView, pieces: list[int]) -> list[Member]:
    members, start = [], 0
    for i in pieces:
        for path in paths:
            members.append(Member(path, i, start, view.pieces[i].count))
            start += view.pieces[i].count
    return members
