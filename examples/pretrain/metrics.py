"""Metrics of a run, one JSON object per line."""

import json
import os
import pathlib


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
        part = path.with_suffix(".part")
        part.write_text("".join(line + "\n" for line in kept))
        os.replace(part, path)
        self._file = path.open("a")

    def write(self, **values) -> None:
        """Adds one line and flushes it; it survives if the process is killed."""
        self._file.write(json.dumps(values) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read(path: pathlib.Path) -> list[dict]:
    """The complete lines of a metrics file; none if the file does not exist."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            rows.append(json.loads(line))
    return rows
