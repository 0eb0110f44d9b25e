"""Runs: training one policy with one optimizer."""

import functools
import pathlib
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import optax_matrix as om
from examples.study.bench import results
from examples.study.reinforce import base, grpo, methods, ppo
from examples.study.reinforce.protocol import Config, Entry, Outcome, due

NAMES = "score", "entropy", "divergence"  # Columns of a curve after the steps.
HIDDEN = om.matrices.by_path(exclude="inputs|outputs")


@functools.lru_cache(maxsize=1)
def _program(task: str, method: str, other: str | None) -> Callable[..., Any]:
    """A function from rate, other rate and seed to what a training measures."""
    jax.clear_caches()  # Of the one before.
    numbers = base.TASK.arena.dimension_numbers if task == "sums" else HIDDEN
    updates = (grpo if task == "sums" else ppo).UPDATES

    def train(rate, other_rate, seed, first):
        beside = None if other is None else (other, other_rate)
        tx = methods.optimizer(method, rate, beside, numbers, updates)
        if task == "sums":
            return grpo.train(tx, first, seed)
        return ppo.train(tx, seed)

    return jax.jit(train)


def run(config: Config) -> Outcome:
    """Trains once; runs that differ in rates and seed only share their programs."""
    is_sums = config.task == "sums"
    first = base.weights() if is_sums else None
    begin = time.process_time()
    train = _program(config.task, config.method, config.other)
    rates = np.float32(config.rate), np.float32(config.other_rate or 0.0)
    found = jax.device_get(train(*rates, np.uint32(config.seed), first))
    steps = (grpo if is_sums else ppo).steps()
    return outcome(steps, found, time.process_time() - begin)


def outcome(steps: np.ndarray, found: dict[str, Any], seconds: float) -> Outcome:
    """What was measured; from the first number on that is not finite, nothing is kept.

    Args:
        steps: Steps, the first one 0.
        found: Arrays of the same length by the name in `NAMES`.
        seconds: Of the run.
    """
    columns = np.stack([found[name] for name in NAMES], 1)
    fine = np.isfinite(columns).all(1).cumprod().astype(bool)
    rows = zip(steps[fine], columns[fine].astype(float), strict=True)
    curve = [[int(step), *(round(x, 5) for x in row)] for step, row in rows]
    late = found["score"][len(steps) // 2 + 1 :].astype(np.float64)
    score = round(float(late.mean()), 5) if fine.all() else None
    return Outcome(score, curve, round(seconds, 1))


def run_next(entry: Entry, path: pathlib.Path, command: str) -> bool:
    """Does the next run of an entry and adds it to a file; False if it has had all."""
    config = due(entry, results.read(path, Config, Outcome))
    if config:
        results.append(config, run(config), path, command)
    return config is not None
