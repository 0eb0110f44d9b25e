"""Groups of equal matrices: a parameter tree as ``{group: (batch, out, in)}``."""

import dataclasses
import itertools
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import dtypes
from jaxtyping import Array

from optax_matrix.layout._dimension_numbers import Side
from optax_matrix.layout._paths import named_leaves, natural_order
from optax_matrix.layout._rules import resolve
from optax_matrix.layout._specs import explicit_spec
from optax_matrix.layout._view import MatrixView

STACK_ELEMENTS = 2**26
"""Default bound of a stack on a device, in elements: 256 MiB in float32."""

FILLER = (0xFFFFFFFF, 0xFFFFFFFF)
"""Identity of the zero matrices that make a stack divisible among its owners."""


@dataclasses.dataclass(frozen=True)
class Member:
    """Piece ``piece`` of the leaf at ``path``: ``count`` matrices.

    They stand in the stack from ``start`` on, unless owners spread them over devices;
    then the group's ``ids`` tell.
    """

    path: str
    piece: int
    start: int
    count: int


@dataclasses.dataclass(frozen=True)
class Group:
    """Matrices that are stacked and updated together; static but for `ids`.

    Attributes:
        name: Key of the stack: shape, residual side, dtype, checksum of `ids`.
        rows: Output size m.
        cols: Reduction size n.
        dtype: Dtype of the leaves.
        residual: Side of the residual stream (``"out"``, ``"in"``), if known.
        spec: Mesh axes of ``(batch, out, in)`` of the stack, as far as they are known.
        members: The pieces of leaves that the stack consists of.
        count: Number of matrices, those that only fill up the owners included.
        ids: Identity of each matrix, uint32 ``(count, 2)``: crc32 of its path, position
            in its leaf; `FILLER` for a matrix that only fills up. Fold these into a
            random key, and results depend on neither grouping nor placement. Inside
            the step of sharded owners, a traced array.
    """

    name: str
    rows: int
    cols: int
    dtype: Any
    residual: Side | None
    spec: tuple
    members: tuple[Member, ...]
    count: int
    ids: Any = dataclasses.field(compare=False, repr=False)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of the stack: ``(count, rows, cols)``."""
        return self.count, self.rows, self.cols


@dataclasses.dataclass(frozen=True)
class Layout:
    """The static picture of a parameter tree that blocks are built for.

    Attributes:
        groups: The groups by name, in a fixed order.
        views: The view of every matrix leaf, by path.
        others: Why each other leaf is no matrix, by path.
        reasons: Why each matrix leaf is one, by path.
    """

    groups: Mapping[str, Group]
    views: Mapping[str, MatrixView]
    others: Mapping[str, str]
    reasons: Mapping[str, str]

    @property
    def axes(self) -> dict[str, tuple[str, ...]]:
        """Per stack the mesh axes that it is spread over within a `shard_map`."""
        return dict.fromkeys(self.groups, ())

    def zeros(self) -> dict[str, Array]:
        """Stacks of zeros."""
        return {n: jnp.zeros(g.shape, g.dtype) for n, g in self.groups.items()}

    def stack(
        self, leaves: Mapping[str, Array], exact: bool = False
    ) -> dict[str, Array]:
        """Gathers matrix leaves, given by path, into stacks.

        Args:
            leaves: Arrays of the leaves' shapes.
            exact: Whether they must not be rounded on the way to other devices.

        Returns:
            The stacks, by name.
        """
        del exact  # Nothing travels here.

        def run(view: MatrixView, members: list[Member]) -> Array:
            # Leaves of one view are stacked as they are and turned together: one
            # transposition where there would be one per leaf.
            stacked = _concatenate([leaves[m.path][None] for m in members])
            return view.to_matrices(stacked)[members[0].piece]

        return {
            name: _concatenate([run(*args) for args in self._runs(group)])
            for name, group in self.groups.items()
        }

    def unstack(self, stacks: Any) -> dict[str, Array]:
        """The matrix leaves, by path, whose stacks these are."""
        leaves: dict[str, Array] = {}
        pieces: dict[str, dict[int, Array]] = {}
        for name, group in self.groups.items():
            for view, members in self._runs(group):
                first, last = members[0], members[-1]
                rows = slice(first.start, last.start + last.count)
                if len(view.pieces) == 1:
                    stacked = view.from_matrices([stacks[name][rows]])
                    leaves |= {m.path: stacked[i] for i, m in enumerate(members)}
                    continue
                for m in members:
                    rows = slice(m.start, m.start + m.count)
                    pieces.setdefault(m.path, {})[m.piece] = stacks[name][rows]
        for path, parts in pieces.items():
            ordered = [parts[i] for i in range(len(parts))]
            leaves[path] = self.views[path].from_matrices(ordered)[0]
        return leaves

    def _runs(self, group: Group) -> list[tuple[MatrixView, list[Member]]]:
        """The members of a group by view and piece, in stack order."""
        kind = lambda m: (self.views[m.path], m.piece)
        runs = itertools.groupby(group.members, key=kind)
        return [(view, list(members)) for (view, _), members in runs]


def make_layout(
    params: Any, dimension_numbers: Any = None, max_batch: int | None = None
) -> Layout:
    """Resolves and groups the matrix leaves of a tree.

    Leaves share a stack when their matrices have the same shape, residual side, dtype
    and (under explicit axes) sharding. Stacks are ordered by view, then by path, and
    hold at most `max_batch` matrices, or `STACK_ELEMENTS` elements, but at least one
    leaf.

    Args:
        params: Parameters, gradients, or their `jax.ShapeDtypeStruct`.
        dimension_numbers: As in `resolve`.
        max_batch: Largest number of matrices in a stack.

    Returns:
        The layout; equal for equal paths, shapes, dtypes and shardings.
    """
    resolved = resolve(dimension_numbers, params)
    leaves = named_leaves(params)
    views = {p: r.view for p, r in resolved.items() if r.view is not None}
    pools: dict[tuple, dict[tuple, list[tuple[str, int, int]]]] = {}
    for path in sorted(views, key=natural_order):
        view, dtype = views[path], dtypes.canonicalize_dtype(leaves[path].dtype)
        spec = view.spec_of_piece(explicit_spec(leaves[path]))
        for i, piece in enumerate(view.pieces):
            key = (piece.rows, piece.cols, view.residual, dtype, spec)
            pools.setdefault(key, {}).setdefault((view, i), []).append(
                (path, i, piece.count)
            )
    groups = [
        _group(key, chunk)
        for key, runs in pools.items()
        for chunk in chunks(
            list(itertools.chain(*runs.values())),
            max_batch or default_batch(*key[:2]),
            size=lambda piece: piece[2],
        )
    ]
    return Layout(
        groups={group.name: group for group in groups},
        views=views,
        others={p: r.reason for p, r in resolved.items() if r.view is None},
        reasons={p: r.reason for p, r in resolved.items() if r.view is not None},
    )


def default_batch(rows: int, cols: int) -> int:
    """The number of matrices that `STACK_ELEMENTS` allows in a stack."""
    return max(1, STACK_ELEMENTS // (rows * cols))


def chunks(items: list[Any], limit: int, size: Callable[[Any], int]):
    """Splits items in order into runs of total size `limit`, or of one item."""
    chunk: list[Any] = []
    total = 0
    for item in items:
        if chunk and total + size(item) > limit:
            yield chunk
            chunk, total = [], 0
        chunk.append(item)
        total += size(item)
    yield chunk


def make_group(rows, cols, dtype, residual, spec, members, ids) -> Group:
    """A group whose name says what it holds, and in which order."""
    checksum = zlib.crc32(ids.tobytes())
    parts = [f"{rows}x{cols}", residual, None if dtype == jnp.float32 else dtype.name]
    name = "-".join(p for p in parts if p) + f"@{checksum:08x}"
    members = tuple(members)
    return Group(name, rows, cols, dtype, residual, spec, members, len(ids), ids)


def identities(path: str, piece: int, index: np.ndarray) -> np.ndarray:
    """Identities ``(..., 2)`` of the matrices at `index` in a piece of a leaf."""
    crc = np.full_like(index, zlib.crc32(path.encode()), np.uint32)
    return np.stack([crc, ((piece << 20) + index).astype(np.uint32)], -1)


def _group(key: tuple, pieces: list[tuple[str, int, int]]) -> Group:
    rows, cols, residual, dtype, spec = key
    members, start = [], 0
    for path, piece, count in pieces:
        members.append(Member(path, piece, start, count))
        start += count
    ids = [identities(m.path, m.piece, np.arange(m.count)) for m in members]
    return make_group(rows, cols, dtype, residual, spec, members, np.concatenate(ids))


def _concatenate(pieces: list[Array]) -> Array:
    return pieces[0] if len(pieces) == 1 else jnp.concatenate(pieces)
