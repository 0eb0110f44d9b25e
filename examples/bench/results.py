"""The finished runs: JSON lines, one per run, keyed by the run's configuration."""

import dataclasses
import datetime as dt
import importlib.metadata
import json
import os
import pathlib
import platform

from examples.bench.config import Config, Result
from examples.pretrain.errors import UserError

PATH = pathlib.Path(__file__).parents[1] / "results" / "bench.jsonl"
PACKAGES = "jax", "jaxlib", "optax", "flax"


def read(path: pathlib.Path = PATH) -> dict[Config, Result]:
    """The results of a file; an incomplete last line is left out.

    Raises:
        UserError: If a line is damaged.
    """
    if not path.exists():
        return {}
    *lines, _ = path.read_text().split("\n")
    found: dict[Config, Result] = {}
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            found.setdefault(Config(**row["config"]), Result(**row["result"]))
        except (ValueError, TypeError, KeyError):
            raise UserError(
                f"Line {number} of {path} is damaged; delete it, and its run will be "
                "repeated."
            ) from None
    return found


def append(config: Config, result: Result, path: pathlib.Path, command: str) -> None:
    """Adds a run by one write, so that processes can share the file."""
    row = {
        "config": dataclasses.asdict(config),
        "result": dataclasses.asdict(result),
        "where": {"command": command} | where(),
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


def where() -> dict[str, str]:
    """Versions and machine, which are recorded and not compared."""
    versions = [f"{name} {importlib.metadata.version(name)}" for name in PACKAGES]
    return {
        "versions": ", ".join(versions),
        "python": platform.python_version(),
        "machine": _processor(),
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
    }


def _processor() -> str:
    info = pathlib.Path("/proc/cpuinfo")
    names = [
        line.partition(":")[2].strip()
        for line in (info.read_text().splitlines() if info.exists() else ())
        if line.startswith("model name")
    ]
    return f"{names[0]}, {len(names)} cores" if names else platform.machine()
