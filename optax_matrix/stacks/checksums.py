"""Checksums that stand for the paths of parameters in a state."""

import zlib
from collections.abc import Iterable


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
