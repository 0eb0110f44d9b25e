"""Metrics of a run, one JSON object per line."""

import errno
import json
import os
import pathlib

from examples.pretrain.directory import write_whole
from examples.pretrain.errors import UserError


class Metrics:
    """Appends to a JSONL file.

    Args:
        path: The file.
        after: Step of the checkpoint that the run continues from. Lines of later
            steps, and an incomplete last line, are dropped, so that no step appears
            twice.
    """

    def __init__(self, path: pathlib.Path, after: int = 0):
        kept = [json.dumps(row) for row in read(path) if row["step"] <= after]
        write_whole(path, "".join(line + "\n" for line in kept))
        self._path, self._file = path, path.open("ab", buffering=0)

    def write(self, **values) -> None:
        """Adds one line; it survives if the process is killed.

        Raises:
            UserError: If the disk fails, or the file has vanished.
        """
        try:
            if not os.fstat(self._file.fileno()).st_nlink:
                raise FileNotFoundError("the file has vanished")
            line = (json.dumps(values) + "\n").encode()
            if self._file.write(line) != len(line):  # The disk took only a part.
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise UserError(
                f"Cannot write {self._path} ({error}); repair or free the disk, then "
                f"resume the run."
            ) from None

    def close(self) -> None:
        self._file.close()


def read(path: pathlib.Path) -> list[dict]:
    """The complete lines of a metrics file; none if the file does not exist.

    Raises:
        UserError: If a line is damaged.
    """
    if not path.exists():
        return []
    rows = []
    *lines, _ = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            rows.append(json.loads(line))
            rows[-1]["step"] + 0
        except (ValueError, TypeError, KeyError):
            raise UserError(
                f"Line {number} of {path} is damaged; repair or delete it."
            ) from None
    return rows
