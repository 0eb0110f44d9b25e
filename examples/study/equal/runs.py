"""Runs: training under one method with some settings."""

import dataclasses
import functools
import pathlib
from typing import Any

import jax

from examples.study.bench import results
from examples.study.bench.config import Result
from examples.study.bench.runs import FEWER, Bench
from examples.study.bench.tasks import TASKS
from examples.study.equal import methods, own
from examples.study.equal.config import TUNING, Config
from examples.study.equal.protocol import Entry, due
from examples.study.equal.sets import held_out

IDENTITY = ("task", "method", "steps", "seed")


@functools.lru_cache(maxsize=1)
def _alone(task: str, method: str, steps: int) -> Bench:
    jax.clear_caches()  # Of the one before.
    arena = TASKS[task].arena
    return Bench(
        TASKS[task],
        lambda settings: methods.optimizer(method, settings, arena, steps),
        steps,
        TASKS[task].batch,
        functools.partial(methods.start, method, arena),
        functools.partial(methods.measured, method),
    )


def settings_of(config: Config) -> dict[str, Any]:
    """The numbers that an optimizer is made of."""
    values = dataclasses.asdict(config)
    return {
        name: value
        for name, value in values.items()
        if name not in IDENTITY and value is not None
    }


def run(config: Config) -> Result:
    """Trains once; runs that differ in settings only share their programs."""
    is_trial = config.seed in TUNING
    bench = _alone(config.task, config.method, config.steps)
    data = held_out(config.task, "validation" if is_trial else "test")
    return bench.run(settings_of(config), config.seed, data, FEWER if is_trial else 1)


def run_next(entry: Entry, path: pathlib.Path, command: str) -> bool:
    """Does the next run of an entry and adds it to a file; False if it has had all.

    For a user's function the committed runs of AdamW count, too.
    """
    found = own.read(path) if entry.own else results.read(path, Config)
    config = due(entry, found)
    if config:
        results.append(config, run(config), path, command)
    return config is not None
