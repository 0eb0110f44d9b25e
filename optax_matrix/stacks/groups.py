"""Groups of equal matrices: which matrices a stack holds, and in which order."""

import dataclasses
import zlib
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from optax_matrix.matrices.dimension_numbers import Side
from optax_matrix.matrices.view import MatrixView

STACK_ELEMENTS = 2**26
"""Default bound of a stack on a device, in elements: 256 MiB in float32."""

FILLER = (0xFFFFFFFF, 0xFFFFFFFF)
"""Identity of the zero matrices that pad a stack so that its owners divide it."""


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
        name: Key of the stack: shape, residual side, dtype, checksum of `manifest`.
        rows: Output size m.
        cols: Reduction size n.
        dtype: Dtype of the leaves.
        residual: Side of the residual stream (``"out"``, ``"in"``), if known.
        spec: Mesh axes of ``(batch, out, in)`` of the stack, as far as they are known.
        members: The pieces of leaves that the stack consists of.
        count: Number of matrices, padding included.
        ids: Identity of each matrix, uint32 ``(count, 2)``: crc32 of its path, position
            in its leaf; all ones for padding. Random keys into which these are folded
            depend on neither grouping nor placement. Under `owners` this is a traced
            array inside a step.
        forms: How each matrix lies in its leaf, uint32 ``(count, 2)``, as ``form_of``
            returns it.
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


def make_group(rows, cols, dtype, residual, spec, members, ids, forms) -> Group:
    """A group, named by its shape and by the checksum of its matrices in order."""
    parts = [f"{rows}x{cols}", residual, None if dtype == jnp.float32 else dtype.name]
    name, members = "-".join(p for p in parts if p), tuple(members)
    group = Group(
        name, rows, cols, dtype, residual, spec, members, len(ids), ids, forms
    )
    return dataclasses.replace(group, name=f"{name}@{checksum(group.manifest):08x}")


def checksum(manifest: np.ndarray) -> int:
    """The number in the name of a stack that holds these matrices."""
    return zlib.crc32(np.ascontiguousarray(manifest).tobytes())


def form_of(view: MatrixView) -> np.ndarray:
    """Two checksums, uint32 ``(2,)``: of a leaf's shape, and of how it is seen.

    Leaves of one shape that are seen differently (another orientation of a square
    matrix, another order of heads) thus differ in the second number alone.
    """
    sides = view.batch_axes, view.output_axes, view.reduction_axes
    axes = [[a for a in side if view.shape[a] > 1] for side in sides]
    seen = axes, view.output_sections, view.reduction_sections
    numbers = [zlib.crc32(repr(x).encode()) for x in (view.shape, seen)]
    return np.array(numbers, np.uint32)


def identities(path: str, piece: int, index: np.ndarray) -> np.ndarray:
    """Identities ``(..., 2)`` of the matrices at `index` in a piece of a leaf."""
    crc = np.full_like(index, zlib.crc32(path.encode()), np.uint32)
    return np.stack([crc, ((piece << 20) + index).astype(np.uint32)], -1)


def ids_of_pieces(view: MatrixView, path: str) -> list[np.ndarray]:
    """Identities ``(count, 2)`` of the matrices of a leaf, for each of its pieces."""
    return [
        identities(path, i, np.arange(piece.count))
        for i, piece in enumerate(view.pieces)
    ]
