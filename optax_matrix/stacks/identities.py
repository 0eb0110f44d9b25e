"""Which matrix is which: the numbers that a state keeps for parameters."""

import zlib
from collections.abc import Iterable

import numpy as np

from optax_matrix.matrices.view import MatrixView

FILLER = (0xFFFFFFFF, 0xFFFFFFFF)
"""Identity of the zero matrices that pad a stack so that its owners divide it."""


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


def checksum(manifest: np.ndarray) -> int:
    """The number in the name of a stack that holds these matrices."""
    return zlib.crc32(np.ascontiguousarray(manifest).tobytes())


def paths_by_checksum(paths: Iterable[str]) -> dict[int, str]:
    """Parameter paths by their crc32; raises if two paths have the same."""
    found: dict[int, str] = {}
    for path in paths:
        other = found.setdefault(zlib.crc32(path.encode()), path)
        if other != path:
            raise ValueError(
                "`params` must have paths of different checksums, but the crc32 of "
                f"{other!r} and {path!r} is the same, so their state and their random "
                "keys could not be told apart; rename one of them."
            )
    return found
