"""The finished runs: JSON lines, one per run, keyed by the run's configuration."""

import dataclasses
import json
import os
import pathlib
from collections.abc import Collection, Iterator

from examples.pretrain.directory import where
from examples.pretrain.errors import UserError
from examples.study.bench.config import Config, Result

PATH = pathlib.Path(__file__).parents[1] / "results" / "bench.jsonl"


def read(path: pathlib.Path = PATH) -> dict[Config, Result]:
    """The results of a file; an incomplete last line is left out.

    Raises:
        UserError: If a line is damaged.
    """
    found: dict[Config, Result] = {}
    for config, result, _ in _rows(path):
        found.setdefault(config, result)
    return found


def origins(path: pathlib.Path = PATH) -> dict[Config, dict[str, str]]:
    """Command, versions, machine and date of each run in a file."""
    return {config: origin for config, _, origin in reversed([*_rows(path)])}


def _rows(path: pathlib.Path) -> Iterator[tuple[Config, Result, dict[str, str]]]:
    if not path.exists():
        return
    *lines, _ = path.read_text().split("\n")
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            yield Config(**row["config"]), Result(**row["result"]), row.get("where", {})
        except (ValueError, TypeError, KeyError):
            raise UserError(
                f"Line {number} of {path} is damaged; delete it, and its run will be "
                "repeated."
            ) from None


def append(config: Config, result: Result, path: pathlib.Path, command: str) -> None:
    """Adds a run by one write, so that processes can share the file."""
    _add(config, result, {"command": command} | where(), path)


def copy(
    wanted: Collection[Config], path: pathlib.Path, source: pathlib.Path = PATH
) -> None:
    """Adds the runs of another file, as they are recorded there."""
    there = read(path)
    for config, result, origin in _rows(source):
        if config in wanted and config not in there:
            there[config] = result
            _add(config, result, origin, path)


def _add(config, result, origin, path):
    row = {
        "config": dataclasses.asdict(config),
        "result": dataclasses.asdict(result),
        "where": origin,
    }
    with path.open("ab", buffering=0) as file:
        file.write((json.dumps(row) + "\n").encode())


def prepare(path: pathlib.Path) -> None:
    """Makes the file's folder, and removes an incomplete last line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        content = path.read_bytes()
        end = content.rfind(b"\n") + 1
        if end < len(content):
            os.truncate(path, end)
