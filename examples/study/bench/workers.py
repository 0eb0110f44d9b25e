"""Worker processes, one per core; each takes an entry at a time and does its runs.

The models are small, so that two runs in one thread each are faster than one run in
two. A run that is stopped leaves nothing behind; finished ones are not repeated.
"""

import importlib
import multiprocessing
import os
import pathlib
import queue
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
)

from examples.pretrain.bars import named_times
from examples.pretrain.errors import UserError

ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


def run_all(
    entries: Sequence[Any],
    path: pathlib.Path,
    count: int,
    command: str,
    left: Callable[[], int],
    program: str = "examples.study.bench.runs",
) -> None:
    """Does the runs that are missing.

    Args:
        entries: Rows of a study that lack runs.
        path: File of results.
        count: Number of processes.
        command: What was called, for the records.
        left: Counts the runs that are missing.
        program: Module with ``run_next(entry, path, command)``, which does one run of
            an entry and returns False if there was none to do. It is imported by the
            processes, since JAX reads the environment then.

    Raises:
        UserError: If a process failed.
    """
    context = multiprocessing.get_context("spawn")
    waiting = context.Queue()
    waiting.cancel_join_thread()  # A stop leaves entries that nobody will take.
    for entry in entries:
        waiting.put(entry)
    workers = [
        context.Process(
            target=_work, args=(waiting, core, program, path, command), daemon=True
        )
        for core in _cores(min(count, len(entries)))
    ]
    for worker in workers:
        worker.start()
    try:
        _watch(workers, left, path)
    finally:
        for worker in workers:
            worker.terminate()


def _cores(count):
    """A core for each process if they take all of them; else the system chooses."""
    known = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return known if len(known) == count else [None] * count


def _work(waiting: Any, core: int | None, program: str, *arguments: Any) -> None:
    """Takes entries until none is left."""
    alone(core)
    run_next = importlib.import_module(program).run_next
    while True:
        try:
            entry = waiting.get(timeout=1)
        except queue.Empty:
            return
        while run_next(entry, *arguments):
            if not multiprocessing.parent_process().is_alive():
                return  # It was killed.


def alone(core: int | None) -> None:
    """Gives this process one thread, and perhaps a core; before it imports JAX."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent ends this process.
    if core is not None:
        os.sched_setaffinity(0, {core})
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {ONE_THREAD}"


def _watch(workers, left, path):
    """Shows the progress until all processes have ended."""
    total, size = left(), _size(path)
    columns = (
        *(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()),
        *named_times(),
    )
    with Progress(*columns, speed_estimate_period=1800) as progress:
        task = progress.add_task("runs", total=total)
        while any(worker.is_alive() for worker in workers):
            time.sleep(2)
            if size != (size := _size(path)):
                progress.update(task, completed=total - left())
    failed = [worker.exitcode for worker in workers if worker.exitcode]
    if failed:
        raise UserError(
            f"{len(failed)} of {len(workers)} processes failed; their messages are "
            "above. Start the study again to go on."
        )


def _size(path):
    return path.stat().st_size if path.exists() else 0
