"""Processes that compile at the same time and use the device one after another.

Compiling takes most of the time, and a second program on the device would disturb the
clock. Each job has a process. It compiles, waits until all have, and has its turn.
"""

import importlib
import json
import os
import pathlib
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

# What to do: the name of a ``module`` whose `compiled(job)` returns a function to run.
# With a ``root``, the packages are those of the checkout there.
Job = dict[str, Any]
_PAUSE = 0.05


def run(
    jobs: Sequence[Job],
    workers: int,
    limit: float,
    patience: float,
    folder: pathlib.Path,
) -> Iterator[Job]:
    """Runs jobs; returns what each of them measured, or its error.

    Args:
        jobs: What to do.
        workers: How many of them compile at a time.
        limit: Seconds to compile all of them; those that take longer are ended.
        patience: Seconds for each turn.
        folder: Where the processes leave their notes; it exists and is empty.

    Yields:
        Each job with its results.
    """
    ready = _compile(jobs, workers, limit, folder)
    try:
        yield from _in_turn(jobs, ready, limit, patience, folder)
    finally:
        for process in ready.values():
            process.kill()
            process.wait()


def _in_turn(
    jobs: Sequence[Job],
    ready: dict[int, subprocess.Popen],
    limit: float,
    patience: float,
    folder: pathlib.Path,
) -> Iterator[Job]:
    """The jobs that are ready run, one after the other."""
    for i, job in enumerate(jobs):
        if i not in ready:
            yield {**job, "error": f"not compiled after {limit:.0f} seconds"}
            continue
        (folder / f"{i}.go").touch()
        try:
            ready[i].wait(patience)
        except subprocess.TimeoutExpired:
            ready[i].kill()
            ready[i].wait()
            yield {**job, "error": f"no result after {patience:.0f} seconds"}
            continue
        result = folder / f"{i}.result"
        if result.exists():
            yield json.loads(result.read_text())
        else:
            log = " ".join((folder / f"{i}.log").read_text()[-300:].split())
            yield {**job, "error": f"ended with {ready[i].returncode}: {log}"}


def _compile(
    jobs: Sequence[Job], workers: int, limit: float, folder: pathlib.Path
) -> dict[int, subprocess.Popen]:
    """The processes of the jobs that have compiled, or failed, in time."""
    end = time.monotonic() + limit
    waiting, compiling, ready = list(range(len(jobs))), {}, {}
    while (waiting or compiling) and time.monotonic() < end:
        while waiting and len(compiling) < workers:
            i = waiting.pop(0)
            compiling[i] = _start(jobs[i], i, folder)
        for i, process in list(compiling.items()):
            if (folder / f"{i}.ready").exists() or process.poll() is not None:
                ready[i] = compiling.pop(i)
        time.sleep(_PAUSE)
    for process in compiling.values():
        process.kill()
        process.wait()
    return ready


def _start(job: Job, i: int, folder: pathlib.Path) -> subprocess.Popen:
    (folder / f"{i}.job").write_text(json.dumps(job))
    root = str(job.get("root") or pathlib.Path.cwd())
    environment = {**os.environ, "PYTHONPATH": root}
    command = [sys.executable, "-m", __name__, str(folder.resolve()), str(i)]
    with (folder / f"{i}.log").open("w") as log:
        return subprocess.Popen(
            command, cwd=root, env=environment, stdout=log, stderr=subprocess.STDOUT
        )


def work(folder: pathlib.Path, i: str) -> None:
    """What the process of a job does."""
    job = json.loads((folder / f"{i}.job").read_text())
    try:
        start = time.perf_counter()
        function = importlib.import_module(job["module"]).compiled(job)
        job["compile_s"] = round(time.perf_counter() - start, 1)
        if not job.get("ahead"):  # Else it is kept, and runs on another machine.
            if not _is_my_turn(folder, i):
                return
            job |= function()
    except Exception as error:  # One program that fails is a finding.
        traceback.print_exc()
        job["error"] = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    (folder / f"{i}.result").write_text(json.dumps(job))


def _is_my_turn(folder: pathlib.Path, i: str) -> bool:
    """Says that a program is compiled, and waits; false if nobody will say when."""
    parent = os.getppid()
    (folder / f"{i}.ready").touch()
    while not (folder / f"{i}.go").exists():
        if os.getppid() != parent:
            return False
        time.sleep(_PAUSE)
    return True


if __name__ == "__main__":
    work(pathlib.Path(sys.argv[1]), sys.argv[2])
