"""Several optimizers under one protocol: same data, weights and schedule for all."""

import dataclasses
import functools
import json
import math
import pathlib
import statistics
import time
from collections.abc import Callable, Mapping

import jax
import numpy as np

from examples.pretrain.config import ModelConfig
from examples.pretrain.data import Data
from examples.pretrain.directory import where, write_whole
from examples.pretrain.optimizers import find, version
from examples.pretrain.step import Trainer, evaluate, state_bytes
from examples.pretrain.train import Bar, display
from examples.study.bench import results
from examples.study.compare.protocol import (
    REFERENCE,
    Curve,
    Row,
    at_best_learning_rate,
)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Everything that decides the outcome of a comparison.

    Attributes:
        model: The model.
        optimizers: Names, with options; AdamW is the reference and always the first.
        learning_rates: Peaks of the learning rate at which AdamW is run.
        sweep: `adamw`: the others run at AdamW's best learning rate, as their updates
            are matched to AdamW's root mean square. `all`: every optimizer runs at
            every learning rate.
        own_rates: The only learning rate of some optimizers, by name.
        steps: Updates of the weights in every run.
        batch: Windows per update.
        accumulate: Micro-batches per update.
        data: Value of `--data`.
        tokenizer: Value of `--tokenizer`.
        seeds: Runs of each optimizer at each learning rate.
        eval_every: Number of updates between two evaluations.
        validation: Windows of an evaluation.
        checksum: Checksum of the data.
    """

    model: ModelConfig
    optimizers: tuple[str, ...]
    learning_rates: tuple[float, ...]
    sweep: str
    steps: int
    batch: int
    accumulate: int
    data: str
    tokenizer: str | None
    seeds: int
    eval_every: int
    validation: int
    checksum: str
    own_rates: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def tokens(self) -> int:
        return self.batch * self.model.context


class Finished:
    """The runs of a comparison that have ended, in a file if there is one.

    An interrupted comparison reads its runs from the file and makes the others. Those
    of a user's function do not count after its module has changed.
    """

    def __init__(self, path: pathlib.Path | None = None):
        self._path, self._found = path, {}
        if path is None:
            return
        results.prepare(path)
        row = lambda given: (_curve(given["curve"]), given["version"])
        for curve, of_file in results.parsed(path, row, "its run will be made again"):
            if of_file == version(curve.optimizer):
                self._found[curve.optimizer, curve.learning_rate, curve.seed] = curve

    def get(self, name: str, rate: float, seed: int) -> Curve | None:
        """A run; None if it has not ended."""
        return self._found.get((name, rate, seed))

    def add(self, curve: Curve) -> None:
        """Keeps a run, by one write."""
        if self._path:
            of_file = version(curve.optimizer)
            row = {"curve": dataclasses.asdict(curve), "version": of_file}
            with self._path.open("ab", buffering=0) as file:
                file.write((json.dumps(row) + "\n").encode())

    def drop(self) -> None:
        """Deletes the file, after the comparison."""
        if self._path:
            self._path.unlink(missing_ok=True)


def _curve(row: dict) -> Curve:
    lists = {name: tuple(row[name]) for name in ("steps", "losses")}
    return Curve(**row | lists)


def compare(
    plan: Comparison,
    open_data: Callable[[int], Data],
    finished: Finished | None = None,
) -> list[Curve]:
    """Runs every optimizer.

    Args:
        plan: The comparison.
        open_data: Function from a seed to the data.
        finished: The runs that have ended; those of this call are added.

    Returns:
        The curves of all runs, in the order of the runs.
    """
    data = [open_data(seed) for seed in range(plan.seeds)]
    names = dict.fromkeys((REFERENCE, *plan.optimizers))
    rates, curves = plan.learning_rates, []
    finished = finished or Finished()
    with display() as progress:
        whole = progress.add_task(
            "all runs", total=_runs(plan) * plan.steps, loss="-", speed="-"
        )
        for name in names:
            own = plan.own_rates.get(name)
            these = (own,) if own is not None else rates
            advance = functools.partial(progress.advance, whole)
            curves += _sweep(plan, name, these, data, progress, finished, advance)
            if plan.sweep == "adamw" and name == REFERENCE:
                rates = (at_best_learning_rate(curves)[0].learning_rate,)
    return curves


def _runs(plan: Comparison) -> int:
    """How many runs a comparison has."""
    others = {*plan.optimizers} - {REFERENCE}
    single = [n for n in others if plan.sweep == "adamw" or n in plan.own_rates]
    of_adamw = 1 if REFERENCE in plan.own_rates else len(plan.learning_rates)
    swept = len(plan.learning_rates) * (len(others) - len(single))
    return plan.seeds * (of_adamw + len(single) + swept)


def _sweep(plan, name, rates, data, progress, finished, advance):
    """All runs of one optimizer, with one compilation."""
    trainer = Trainer(plan.model, find(name), plan.steps, plan.accumulate)
    curves = []
    for rate in rates:
        for seed in range(plan.seeds):
            curve = finished.get(name, rate, seed)
            if curve is None:
                bar = Bar(progress, f"{name} {rate:g}", plan.steps, 0, plan.tokens)
                curve = _run(plan, trainer, name, rate, seed, data[seed], bar, advance)
                finished.add(curve)
                advance(plan.steps - curve.steps[-1])  # What a diverged run leaves out.
            else:
                advance(plan.steps)
            curves.append(curve)
    return curves


def _run(plan, trainer, name, rate, seed, data, bar, advance):
    """One run; ends early, with NaN, when the loss is no longer finite."""
    state = trainer.init(seed)
    size = state_bytes(state.opt_state)
    batches, peak = iter(data.train), np.float32(rate)
    steps, losses, times = [], [], []
    for step in range(1, plan.steps + 1):
        batch = next(batches)
        start = time.perf_counter()
        state, _ = jax.block_until_ready(trainer.update(state, batch, peak))
        times.append(time.perf_counter() - start)
        if step % plan.eval_every == 0 or step == plan.steps:
            steps.append(step)
            losses.append(evaluate(plan.model, state.params, data.validation))
            advance(step - (steps[-2] if steps[1:] else 0))
            bar.show(step, losses[-1])
            if not math.isfinite(losses[-1]):
                break
    # The first update may have been compiled.
    median = 1e3 * statistics.median(times[1:] or times)
    return Curve(name, rate, seed, tuple(steps), tuple(losses), median, size)


def write_results(path: pathlib.Path, plan, curves, rows: list[Row]) -> None:
    """Everything measured, as JSON."""
    content = {
        "plan": dataclasses.asdict(plan),
        "where": where(),
        "rows": [dataclasses.asdict(row) for row in rows],
        "curves": [dataclasses.asdict(curve) for curve in curves],
    }
    write_whole(path, json.dumps(content, indent=1) + "\n")
