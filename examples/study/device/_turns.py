"""Processes that compile at the same time and use the device one after another.

Compiling takes most of the time, and a second program on the device would disturb the
clock. A worker compiles all of its programs, waits for the others, and takes its turn.
"""

import importlib
import json
import os
import pathlib
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

Job = dict[str, Any]  # ``module`` has `compiled(job)`, which returns a function to run.
_PAUSE = 0.05


def run(
    jobs: Sequence[Job], workers: int, limit: float, folder: pathlib.Path
) -> list[Job]:
    """Runs jobs; returns what each of them measured, or its error.

    Args:
        jobs: What to do; each has the name of a ``module``.
        workers: Number of processes.
        limit: Seconds after which no further job is compiled.
        folder: Where the processes leave their notes.

    Returns:
        The jobs with their results, in order.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    shares = [list(jobs[i::workers]) for i in range(min(workers, len(jobs)))]
    processes = []
    for i, share in enumerate(shares):
        note = {"jobs": share, "index": i, "of": len(shares), "until": _now() + limit}
        (folder / f"{i}.jobs").write_text(json.dumps(note))
        command = [sys.executable, "-m", __name__, str(folder), str(i)]
        with (folder / f"{i}.log").open("w") as log:
            processes.append(
                subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
            )
    alive = dict(enumerate(processes))
    while alive:
        for i, process in list(alive.items()):
            if process.poll() is not None:  # A worker that fell does not stop the rest.
                _note(folder, "ready", i)
                _note(folder, "done", i)
                del alive[i]
        time.sleep(_PAUSE)
    results = []
    for i, share in enumerate(shares):
        path = folder / f"{i}.results"
        found = json.loads(path.read_text()) if path.exists() else []
        log = (folder / f"{i}.log").read_text()[-400:]
        lost = [{**job, "error": f"no result: {log}"} for job in share[len(found) :]]
        results.append(found + lost)
    return [results[i % len(shares)][i // len(shares)] for i in range(len(jobs))]


def work(folder: pathlib.Path, index: int) -> None:
    """What one process does."""
    note = json.loads((folder / f"{index}.jobs").read_text())
    ready: list[tuple[Job, Callable[[], Job] | None]] = []
    for job in note["jobs"]:
        if _now() > note["until"]:
            ready.append(({**job, "error": "the time to compile was over"}, None))
            continue
        start = time.perf_counter()
        try:
            function = importlib.import_module(job["module"]).compiled(job)
            seconds = round(time.perf_counter() - start, 1)
            ready.append(({**job, "compile_s": seconds}, function))
        except Exception as error:  # One program that fails is a finding.
            traceback.print_exc()
            ready.append(({**job, "error": _text(error)}, None))
    _note(folder, "ready", index)
    _wait(folder / f"ready-{i}" for i in range(note["of"]))
    _wait(folder / f"done-{i}" for i in range(index))
    results = []
    for i, (job, function) in enumerate(ready):
        ready[i] = (job, None)  # What it holds on the device is freed after its turn.
        if function is not None:
            try:
                job = {**job, **function()}
            except Exception as error:
                traceback.print_exc()
                job = {**job, "error": _text(error)}
        del function
        results.append(job)
        (folder / f"{index}.results").write_text(json.dumps(results))
    _note(folder, "done", index)


def _now() -> float:
    return time.time()


def _text(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def _note(folder: pathlib.Path, word: str, index: int) -> None:
    (folder / f"{word}-{index}").touch()


def _wait(paths) -> None:
    for path in paths:
        while not os.path.exists(path):
            time.sleep(_PAUSE)


if __name__ == "__main__":
    work(pathlib.Path(sys.argv[1]), int(sys.argv[2]))
