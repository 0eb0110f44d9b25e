"""The finished runs: JSON lines, one per run, keyed by the run's configuration."""

import dataclasses
import functools
import json
import os
import pathlib
import subprocess
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from examples.pretrain.directory import where
from examples.pretrain.errors import UserError
from examples.study.bench.config import Config, Result

PATH = pathlib.Path(__file__).parents[1] / "results" / "bench.jsonl"
T = TypeVar("T")


def read(
    path: pathlib.Path = PATH, kind: type[Any] = Config, result: type[Any] = Result
) -> dict[Any, Any]:
    """The results of a file; an incomplete last line is left out.

    Args:
        path: The file.
        kind: Class of the configurations in it.
        result: Class of the results.

    Raises:
        UserError: If a line is damaged.
    """
    found: dict[Any, Any] = {}
    for config, one, _ in _rows(path, kind, result):
        found.setdefault(config, one)
    return found


def origins(
    path: pathlib.Path = PATH, kind: type[Any] = Config
) -> dict[Any, dict[str, str]]:
    """Command, versions, machine and date of each run in a file."""
    return {config: origin for config, _, origin in reversed([*_rows(path, kind)])}


def _rows(
    path: pathlib.Path, kind: type[Any], result: type[Any] = Result
) -> Iterator[Any]:
    """Configuration, result and origin of each run."""

    def row(given):
        origin = given.get("where", {})
        return kind(**given["config"]), result(**given["result"]), origin

    return parsed(path, row, "its run will be repeated")


def parsed(
    path: pathlib.Path, make: Callable[[Any], T], consequence: str
) -> Iterator[T]:
    """What a function makes of each line of a file; an incomplete last one is left out.

    Raises:
        UserError: If a line is damaged; the message ends in the consequence of deleting
            it.
    """
    *lines, _ = path.read_text().split("\n") if path.exists() else [""]
    for number, line in enumerate(lines, 1):
        try:
            yield make(json.loads(line))
        except (ValueError, TypeError, KeyError):
            raise UserError(
                f"Line {number} of {path} is damaged; delete it, and {consequence}."
            ) from None


def append(
    config: Any, result: Any, path: pathlib.Path, command: str, **origin: str
) -> None:
    """Adds a run by one write, so that processes can share the file.

    Args:
        config: Its configuration.
        result: What it measured.
        path: The file.
        command: What was called.
        **origin: What this process cannot know of itself, or a better name for it.
    """
    row = {
        "config": dataclasses.asdict(config),
        "result": dataclasses.asdict(result),
        "where": {"command": command} | where() | commit() | origin,
    }
    with path.open("ab", buffering=0) as file:
        file.write((json.dumps(row) + "\n").encode())


@functools.cache
def commit() -> dict[str, str]:
    """The commit of the code, with a plus if it was changed; empty without git."""

    def git(*arguments):
        call = ["git", "-C", str(pathlib.Path(__file__).parent), *arguments]
        done = subprocess.run(call, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        name = git("rev-parse", "--short=12", "HEAD")
        changed = git(
            "status",
            "--porcelain",
            "-uno",
            "--",
            ":/",
            ":(exclude,top)**/results/*.jsonl",
        )
    except (OSError, subprocess.CalledProcessError):
        return {}
    return {"commit": name + "+" * bool(changed)}


def prepare(path: pathlib.Path) -> None:
    """Makes the file's folder, and removes an incomplete last line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        content = path.read_bytes()
        end = content.rfind(b"\n") + 1
        if end < len(content):
            os.truncate(path, end)
