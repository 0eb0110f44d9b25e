"""Runs: training under one method, and what is measured."""

import functools
import math
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from examples.pretrain.step import state_bytes
from examples.study.bench import results
from examples.study.bench.config import Config, Result
from examples.study.bench.methods import find
from examples.study.bench.search import TUNING, Entry, due
from examples.study.bench.tasks import CLIP, TASKS, WARM_UP, Task, schedule
from examples.study.bench.weights import FORMS, kept, wide

POINTS = 20  # Of a curve.
FEWER = 5  # Points of a trial are that many times fewer: no table shows them.
LOST = 2.0  # A run whose loss exceeds the first one by this factor has failed.


class Bench:
    """A task under one method, compiled once for all its settings and seeds.

    Args:
        task: The task.
        optimizer: Function from the settings of a run, a tree of numbers, to the
            optimizer of the whole model.
        steps: Updates of the weights.
        batch: Windows or images per update.
        start: Function from fresh weights and a seed to those that the method trains.
        measured: Function from the weights and the optimizer's state to the weights
            whose loss is measured.
    """

    def __init__(
        self,
        task: Task,
        optimizer: Callable[[Any], optax.GradientTransformation],
        steps: int,
        batch: int,
        start: Callable[[Any, int], Any] | None = None,
        measured: Callable[[Any, Any], Any] = lambda params, _: params,
    ):
        self._task, self._optimizer = task, optimizer
        self._steps, self._batch = steps, batch
        self._fresh = jax.jit(task.init)
        self._start = start or (lambda params, _: params)
        self._measured = measured

    def weights(self, seed: int) -> Any:
        """The weights that a run starts from."""
        return self._start(self._fresh(seed), seed)

    @functools.partial(jax.jit, static_argnums=0)
    def _init(self, params, settings):
        return self._optimizer(settings).init(params)

    @functools.partial(jax.jit, static_argnums=0, donate_argnums=(1, 2))
    def _train(self, params, opt_state, batches, settings):
        """Several updates."""
        tx = self._optimizer(settings)

        def step(carry, batch):
            params, opt_state = carry
            gradient = jax.grad(self._task.mean_loss)(wide(params), batch)
            updates, opt_state = tx.update(gradient, opt_state, params)
            return (optax.apply_updates(params, updates), opt_state), None

        return jax.lax.scan(step, (params, opt_state), batches)[0]

    @functools.partial(jax.jit, static_argnums=0)
    def _loss(self, params, parts):
        loss = functools.partial(self._task.mean_loss, wide(params))
        return jax.lax.map(loss, parts).mean()

    def trained(self, settings: Any, seed: int) -> Any:
        """The weights after a run, of which nothing is measured."""
        params = self.weights(seed)
        settings = jax.tree.map(np.float32, settings)
        opt_state = self._init(params, settings)
        batches = self._task.batches(seed, self._steps, self._batch)
        whole = _slice(batches, 0, self._steps)
        return self._train(params, opt_state, whole, settings)[0]

    def run(
        self,
        settings: Any,
        seed: int,
        held_out: Any,
        every: int,
        then: Callable[[Any], None] = lambda _: None,
    ) -> Result:
        """Trains once.

        Args:
            settings: Of the optimizer.
            seed: Seed of the weights and of the data's order.
            held_out: What the losses are measured on, in equal parts; every eighth of
                them makes the points of the curve.
            every: Points of a curve that are left out for one that is kept.
            then: Called with the weights that are measured, if the run is whole.
        """
        begin = time.perf_counter()
        few = jax.tree.map(lambda x: x[::8], held_out)
        params = self.weights(seed)
        first = float(self._loss(params, few))
        settings = jax.tree.map(np.float32, settings)
        opt_state = self._init(params, settings)
        size = state_bytes(opt_state)
        batches = self._task.batches(seed, self._steps, self._batch)
        block = max(self._steps // POINTS, 1)
        curve, times = [[0, round(first, 5)]], []
        for start in range(0, self._steps, block):
            part = _slice(batches, start, block)
            clock = time.process_time()  # Another process may want the core.
            params, opt_state = jax.block_until_ready(
                self._train(params, opt_state, part, settings)
            )
            times.append(time.process_time() - clock)
            end = min(start + block, self._steps)
            if end % (block * every) and end < self._steps:
                continue
            loss = float(self._loss(self._measured(params, opt_state), few))
            if not loss < LOST * first:  # Also for NaN.
                break
            curve.append([end, round(loss, 5)])
        whole = curve[-1][0] == self._steps
        last = self._measured(params, opt_state)
        final = float(self._loss(last, held_out)) if whole else math.nan
        if math.isfinite(final):
            then(last)
        return Result(
            loss=round(final, 5) if math.isfinite(final) else None,
            curve=curve,
            milliseconds=round(1e3 * float(np.median(times)) / block, 3),
            state_bytes=size,
            seconds=round(time.perf_counter() - begin, 1),
        )

    def times(self, settings: Any, block: int) -> Iterator[float]:
        """Processor seconds of an update, block after block; the first one compiles."""
        params = self.weights(TUNING)
        settings = jax.tree.map(np.float32, settings)
        opt_state = self._init(params, settings)
        batches = _slice(self._task.batches(TUNING, block, self._batch), 0, block)
        while True:
            clock = time.process_time()
            params, opt_state = jax.block_until_ready(
                self._train(params, opt_state, batches, settings)
            )
            yield (time.process_time() - clock) / block


def _slice(batches, start, count):
    return jax.tree.map(lambda x: jnp.asarray(x[start : start + count]), batches)


def optimizer(build: Any, peak: Any, steps: int) -> optax.GradientTransformation:
    """A method with the schedule and the clipping that all of them have."""
    rate = schedule(peak, steps, getattr(build, "warm_up", WARM_UP))
    return optax.chain(optax.clip_by_global_norm(CLIP), build(rate))


def bench(
    task: str, method: str, setting: str, steps: int, batch: int, form: str = "float32"
) -> Bench:
    """A task under a method of the study; the settings of a run are its peak rate."""
    build = find(method, setting, TASKS[task].arena)
    made = lambda peak: FORMS[form](optimizer(build, peak, steps))
    first = getattr(build, "start", lambda params, _: params)
    start = lambda params, seed: kept(first(params, seed), form)
    return Bench(TASKS[task], made, steps, batch, start)


@functools.lru_cache(maxsize=1)
def _alone(*arguments: Any) -> Bench:
    jax.clear_caches()  # Of the one before.
    return bench(*arguments)


def run(config: Config) -> Result:
    """Trains once; runs that differ in rate and seed only share their programs."""
    c = config
    found = _alone(c.task, c.method, c.setting, c.steps, c.batch, c.weights)
    every = FEWER if c.seed == TUNING else 1
    return found.run(c.rate, c.seed, TASKS[c.task].held_out(), every)


def run_next(entry: Entry, path: pathlib.Path, command: str) -> bool:
    """Does the next run of an entry and adds it to a file; False if it has had all."""
    config = due(entry, results.read(path))
    if config:
        results.append(config, run(config), path, command)
    return config is not None
