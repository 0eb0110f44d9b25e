"""Time of an update relative to AdamW's: the two take turns in one process.

The runs of a study come from many sittings on shared machines, so that their times do
not compare.
"""

import dataclasses
import itertools
import json
import multiprocessing
import pathlib
import statistics
from collections.abc import Mapping, Sequence

import jax

from examples.pretrain.directory import where
from examples.pretrain.errors import UserError
from examples.study.bench import results
from examples.study.bench.comparison import MATCHED
from examples.study.bench.markdown import lines
from examples.study.bench.runs import bench
from examples.study.bench.statistics import REFERENCE
from examples.study.bench.tasks import MAIN, TASKS
from examples.study.bench.workers import alone

PATH = results.PATH.with_name("times.jsonl")
BLOCK, TURNS = 10, 9  # Updates in a row, and how often each of the two has them.


@dataclasses.dataclass(frozen=True)
class Time:
    """Processor time of an update in one thread, medians over turns.

    Attributes:
        task: A name of `tasks.TASKS`.
        method: A method, matched to AdamW.
        milliseconds: Its time.
        relative: Its time over AdamW's, turn by turn.
    """

    task: str
    method: str
    milliseconds: float
    relative: float


Times = Mapping[tuple[str, str], Time]


def read(path: pathlib.Path = PATH) -> dict[tuple[str, str], Time]:
    """The times of a file by task and method; an incomplete last line is left out.

    Raises:
        UserError: If a line is damaged.
    """
    make = lambda row: Time(**row["time"])
    whole = results.parsed(path, make, "its method will be measured again")
    return {(time.task, time.method): time for time in whole}


def run(tasks: Sequence[str], path: pathlib.Path, command: str) -> None:
    """Measures every method that the file does not have, in a process of its own."""
    results.prepare(path)
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_work, args=(tasks, path, command), daemon=True)
    process.start()
    try:
        process.join()
    finally:
        process.terminate()
    if process.exitcode:
        raise UserError(
            "The process failed; its message is above. Run the same command again."
        )


def _work(tasks, path, command):
    alone(None)
    jax.config.update("jax_platforms", "cpu")  # It was imported before.
    for task in tasks:
        found = read(path)
        for method in MATCHED:
            if (task, method) not in found:
                time = measure(task, method)
                row = {"time": dataclasses.asdict(time)}
                origin = {"where": {"command": command} | where()}
                with path.open("a") as file:
                    file.write(json.dumps(row | origin) + "\n")
                print(f"{task} {method}: {time.relative:.2f}", flush=True)


def measure(task: str, method: str) -> Time:
    """Times a method beside AdamW, after a block of each to compile."""
    jax.clear_caches()  # Of the method before.
    t = TASKS[task]
    made = [bench(task, m, "matched", t.steps, t.batch) for m in (method, REFERENCE)]
    both = [one.times(t.rate, BLOCK) for one in made]
    turns = list(itertools.islice(zip(*both, strict=True), TURNS + 1))[1:]
    return Time(
        task,
        method,
        round(1e3 * statistics.median(ours for ours, _ in turns), 3),
        round(statistics.median(ours / adamw for ours, adamw in turns), 3),
    )


def table(found: Times) -> str:
    """Milliseconds of AdamW, and the others' times relative to them, by task."""
    rows = []
    for method in MATCHED:
        times = [found.get((task, method)) for task in MAIN]
        if not any(times):  # Not measured yet.
            continue
        shown = [_milliseconds if method == REFERENCE else _relative] * len(times)
        cells = [show(x) if x else "" for show, x in zip(shown, times, strict=True)]
        rows.append([f"`{method}`", *cells])
    return lines(("method", *MAIN), rows)


def _milliseconds(time):
    return f"{time.milliseconds:.1f} ms"


def _relative(time):
    return f"{time.relative:.2f}"
