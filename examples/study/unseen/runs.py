"""Runs: training under one optimizer, as the documentation says to write it."""

import functools
import pathlib
from typing import Any

import jax
import optax

import optax_matrix as om
from examples.study.bench import results
from examples.study.bench.config import Result
from examples.study.bench.runs import FEWER, Bench
from examples.study.bench.tasks import CLIP, schedule
from examples.study.unseen.protocol import REFERENCE, TUNING, Config, due
from examples.study.unseen.tasks import TASKS, held_out, rule

WARM_UP, DECAY = 0.1, 0.01


def optimizer(task: str, form: str, rate: Any) -> optax.GradientTransformation:
    """AdamW, or MuonEq at a multiple of its rate.

    Args:
        task: A name of `tasks.TASKS`.
        form: Of `protocol.FORMS`.
        rate: Peak of AdamW's rate; it may be traced.
    """
    peak = lambda factor: schedule(factor * rate, TASKS[task].steps, WARM_UP)
    if form == REFERENCE:
        whole = optax.adamw(peak(1.0), weight_decay=DECAY)
    else:
        rates, _, factor = form.rpartition(":")
        other = 1.0 if rates == "two" else float(factor)
        whole = om.muoneq(
            peak(float(factor)),
            weight_decay=DECAY,
            other_learning_rate=peak(other),
            dimension_numbers=rule(task),
        )
    return optax.chain(optax.clip_by_global_norm(CLIP), whole)


@functools.lru_cache(maxsize=1)
def _bench(task: str, form: str) -> Bench:
    jax.clear_caches()  # Of the one before.
    made = functools.partial(optimizer, task, form)
    return Bench(TASKS[task], made, TASKS[task].steps, TASKS[task].batch)


def run(config: Config) -> Result:
    """Trains once; runs that differ in rate and seed only share their programs."""
    is_trial = config.seed in TUNING
    data = held_out(config.task, "validation" if is_trial else "test")
    bench = _bench(config.task, config.form)
    return bench.run(config.rate, config.seed, data, FEWER if is_trial else 1)


def run_next(task: str, path: pathlib.Path, command: str) -> bool:
    """Does the next run of a task and adds it to a file; False if it has had all."""
    config = due(task, results.read(path, Config))
    if config:
        results.append(config, run(config), path, command)
    return config is not None
