"""A parameter tree as stacks of equal matrices: ``{group: (batch, out, in)}``."""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import dtypes
from jaxtyping import Array

from optax_matrix._mesh import explicit_spec
from optax_matrix._paths import named_leaves, natural_order
from optax_matrix._thresholds import Thresholds
from optax_matrix.matrices.decisions import decide, views_of
from optax_matrix.matrices.pairs import Pairs
from optax_matrix.matrices.statistics import Sides, to_pieces
from optax_matrix.matrices.view import MatrixView, Side
from optax_matrix.stacks.identities import checksum, form_of, identities
from optax_matrix.stacks.parts import parts

STACK_ELEMENTS = Thresholds.stack_elements
"""Default bound of a stack on a device, in elements: 256 MiB in float32."""


@dataclasses.dataclass(frozen=True)
class Member:
    """Piece ``piece`` of the leaf at ``path``: ``count`` matrices.

    They are in the stack from position ``start`` on, unless the stack is spread over
    owners; then only the group's ``ids`` give their positions.
    """

    path: str
    piece: int
    start: int
    count: int


@dataclasses.dataclass(frozen=True)
class Group:
    """Matrices that are stacked and updated together; static but for `ids`.

    Attributes:
        name: Key of the stack: shape, residual side if known, checksum of `manifest`.
            Not the dtype: a checkpoint in bfloat16 restores into a run in float32.
        rows: Output size m.
        cols: Reduction size n.
        dtype: Dtype of the leaves.
        residual: Side of the residual stream (``"out"``, ``"in"``), if known. Inside
            `on_matrices`, read it in ``build`` or ``init``; ``update`` is too late.
        spec: Mesh axes of ``(batch, out, in)`` of the stack, as far as they are known.
        members: The pieces of leaves that the stack consists of.
        count: Number of matrices, padding included.
        ids: Identity of each matrix, uint32 ``(count, 2)``: crc32 of its path, position
            in its leaf; all ones for padding. Random keys into which these are folded
            depend on neither grouping nor placement. Under `owners` this is a traced
            array inside a step.
        forms: How each matrix is stored in its leaf, uint32 ``(count, 2)``, from
            ``form_of``.
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
    forms: Any = dataclasses.field(compare=False, repr=False)

    @property
    def manifest(self) -> Any:
        """Which matrices the stack holds: ``ids`` and ``forms``, ``(count, 4)``."""
        both = (self.ids, self.forms)
        numpy = all(isinstance(x, np.ndarray) for x in both)
        return (np if numpy else jnp).concatenate(both, axis=1)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of the stack: ``(count, rows, cols)``."""
        return self.count, self.rows, self.cols


def default_batch(rows: int, cols: int) -> int:
    """The largest number of matrices in a stack of `STACK_ELEMENTS` elements."""
    return max(1, Thresholds.stack_elements // (rows * cols))


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


def make_group(rows, cols, dtype, residual, spec, members, ids, forms) -> Group:
    """A group, named by its shape and by the checksum of its matrices in order."""
    name = f"{rows}x{cols}-{residual}" if residual else f"{rows}x{cols}"
    members = tuple(members)
    group = Group(
        name, rows, cols, dtype, residual, spec, members, len(ids), ids, forms
    )
    return dataclasses.replace(group, name=f"{name}@{checksum(group.manifest):08x}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """Static description of the stacks of a parameter tree.

    Attributes:
        groups: The groups by name, in a fixed order.
        views: The view of every matrix leaf, by path.
        max_batch: Largest number of matrices in a stack of one device; None for as many
            as `STACK_ELEMENTS` allows.
        partners: For each stack of matrices that are the first of a pair the stack of
            their partners, in the same order.
    """

    groups: Mapping[str, Group]
    views: Mapping[str, MatrixView]
    max_batch: int | None = None
    partners: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def ids(self) -> dict[str, Any]:
        """For each group the identities of its matrices, `Group.ids`."""
        return {name: group.ids for name, group in self.groups.items()}

    @property
    def manifest(self) -> dict[str, Any]:
        """For each group which matrices it holds, `Group.manifest`."""
        return {name: group.manifest for name, group in self.groups.items()}

    @property
    def axes(self) -> dict[str, tuple[str, ...]]:
        """For each stack the mesh axes that it is spread over in a ``shard_map``."""
        return dict.fromkeys(self.groups, ())

    def largest_batch(self, rows: int, cols: int) -> int:
        """The largest number of matrices of this shape in a stack of one device."""
        return self.max_batch or default_batch(rows, cols)

    def owners_of(self, path: str) -> str:
        """Which owners have the matrices of a leaf; empty without owners."""
        del path
        return ""

    def zeros(self) -> dict[str, Array]:
        """Stacks of zeros."""
        return {n: jnp.zeros(g.shape, g.dtype) for n, g in self.groups.items()}

    def stack(
        self, leaves: Mapping[str, Array], sides: Sides = None
    ) -> dict[str, Array]:
        """Gathers matrix leaves, given by path, into stacks; or statistics of them."""

        def run(view: MatrixView, members: list[Member]) -> Array:
            # Leaves of one view are stacked first and transposed together: one
            # transposition instead of one per leaf.
            stacked = _concatenate([leaves[m.path][None] for m in members])
            if sides is None:
                return view.to_matrices(stacked)[members[0].piece]
            return to_pieces(view, sides, stacked)[members[0].piece]

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
                    found = parts(view.from_matrices([stacks[name][rows]]), 1)
                    pairs = zip(members, found, strict=True)
                    leaves |= {m.path: x[0] for m, x in pairs}
                    continue
                found = parts(stacks[name][rows], first.count)
                for m, x in zip(members, found, strict=True):
                    pieces.setdefault(m.path, {})[m.piece] = x
        for path, of_leaf in pieces.items():
            ordered = [of_leaf[i] for i in range(len(of_leaf))]
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
        dimension_numbers: As in `on_matrices`.
        max_batch: Largest number of matrices in a stack.

    Returns:
        The layout. It is the same for the same paths, shapes, dtypes and shardings.
    """
    views = views_of(decide(params, dimension_numbers))
    return group_matrices(named_leaves(params), views, max_batch)


def group_matrices(
    leaves: Mapping[str, Any],
    views: Mapping[str, MatrixView],
    max_batch: int | None = None,
    pairs: Pairs = MappingProxyType({}),
) -> Layout:
    """`make_layout` of leaves whose views are known, by path.

    The stacks of partners correspond: matrix i of one is the partner of matrix i of the
    other.
    """
    pools: dict[tuple, dict[tuple, list[tuple]]] = {}
    for unit in units_of(views, pairs):
        kinds = []
        for path in unit:
            view, dtype = views[path], dtypes.canonicalize_dtype(leaves[path].dtype)
            spec = view.spec_of_piece(explicit_spec(leaves[path]))
            kinds.append((path, view, view.pieces, dtype, spec))
        for i, piece in enumerate(kinds[0][2]):
            key, run, members = (), (), ()
            for path, view, pieces, dtype, spec in kinds:
                shape = pieces[i].rows, pieces[i].cols
                key += ((*shape, view.residual, dtype, spec),)
                run += ((view, i),)
                members += ((path, i, piece.count),)
            pools.setdefault(key, {}).setdefault(run, []).append(members)
    by_name: dict[str, Group] = {}
    partners: dict[str, str] = {}
    for key, runs in pools.items():
        for chunk in chunks(
            list(itertools.chain(*runs.values())),
            max_batch or min([default_batch(*kind[:2]) for kind in key]),
            size=lambda members: members[0][2],
        ):
            columns = zip(key, zip(*chunk, strict=True), strict=True)
            made = [_group(kind, members, views) for kind, members in columns]
            by_name |= {group.name: group for group in made}
            if len(made) > 1:
                partners[made[0].name] = made[1].name
    return Layout(groups=by_name, views=views, max_batch=max_batch, partners=partners)


def units_of(views: Mapping[str, MatrixView], pairs: Pairs) -> list[tuple[str, ...]]:
    """The leaves in their order, alone or with their partner behind them."""
    units: list[tuple[str, ...]] = []
    seconds = set(pairs.values())
    for path in sorted(views, key=natural_order):
        if path not in seconds:
            units.append((path, pairs[path]) if path in pairs else (path,))
    return units


def _group(
    key: tuple, pieces: Sequence[tuple], views: Mapping[str, MatrixView]
) -> Group:
    rows, cols, residual, dtype, spec = key
    members, start = [], 0
    for path, piece, count in pieces:
        members.append(Member(path, piece, start, count))
        start += count
    ids = [identities(m.path, m.piece, np.arange(m.count)) for m in members]
    forms = [np.tile(form_of(views[m.path]), (m.count, 1)) for m in members]
    both = np.concatenate(ids), np.concatenate(forms)
    return make_group(rows, cols, dtype, residual, spec, members, *both)


def _concatenate(pieces: list[Array]) -> Array:
    return pieces[0] if len(pieces) == 1 else jnp.concatenate(pieces)
