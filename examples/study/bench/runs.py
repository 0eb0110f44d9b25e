"""Runs: training under one method, and what is measured."""

import functools
import math
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from examples.pretrain.step import state_bytes
from examples.study.bench.config import Config, Result
from examples.study.bench.methods import find
from examples.study.bench.search import TUNING
from examples.study.bench.tasks import CLIP, TASKS, WARM_UP, schedule
from examples.study.bench.weights import FORMS, kept, wide

POINTS = 20  # Of a curve.
FEWER = 5  # Points of a trial are that many times fewer: no table shows them.
LOST = 2.0  # A run whose loss exceeds the first one by this factor has failed.


class Bench:
    """A task under one method, compiled once for all learning rates and seeds."""

    def __init__(
        self,
        task: str,
        method: str,
        setting: str,
        steps: int,
        batch: int,
        weights: str = "float32",
    ):
        self._task, self._steps, self._batch = TASKS[task], steps, batch
        self._weights = weights
        self._build = find(method, setting, self._task.arena)
        self._fresh = jax.jit(self._task.init)

    def _optimizer(self, peak):
        warm_up = getattr(self._build, "warm_up", WARM_UP)
        rate = schedule(peak, self._steps, warm_up)
        tx = optax.chain(optax.clip_by_global_norm(CLIP), self._build(rate))
        return FORMS[self._weights](tx)

    def _start(self, seed: int):
        params = self._fresh(seed)
        start = getattr(self._build, "start", None)
        return kept(start(params, seed) if start else params, self._weights)

    @functools.partial(jax.jit, static_argnums=0)
    def _init(self, params):
        return self._optimizer(0.0).init(params)

    @functools.partial(jax.jit, static_argnums=0, donate_argnums=(1, 2))
    def _train(self, params, opt_state, batches, peak):
        """Several updates."""
        tx = self._optimizer(peak)

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

    def run(self, rate: float, seed: int) -> Result:
        """Trains once."""
        begin = time.perf_counter()
        held_out = self._task.held_out()
        few = jax.tree.map(lambda x: x[::8], held_out)
        params = self._start(seed)
        first = float(self._loss(params, few))
        opt_state, peak = self._init(params), np.float32(rate)
        size = state_bytes(opt_state)
        batches = self._task.batches(seed, self._steps, self._batch)
        every = max(self._steps // POINTS, 1)
        shown = every * FEWER if seed == TUNING else every
        curve, times = [[0, round(first, 5)]], []
        for start in range(0, self._steps, every):
            part = _slice(batches, start, every)
            clock = time.process_time()  # Another process may want the core.
            params, opt_state = jax.block_until_ready(
                self._train(params, opt_state, part, peak)
            )
            times.append(time.process_time() - clock)
            end = min(start + every, self._steps)
            if end % shown and end < self._steps:
                continue
            loss = float(self._loss(params, few))
            if not loss < LOST * first:  # Also for NaN.
                break
            curve.append([end, round(loss, 5)])
        whole = curve[-1][0] == self._steps
        final = float(self._loss(params, held_out)) if whole else math.nan
        return Result(
            loss=round(final, 5) if math.isfinite(final) else None,
            curve=curve,
            milliseconds=round(1e3 * float(np.median(times)) / every, 3),
            state_bytes=size,
            seconds=round(time.perf_counter() - begin, 1),
        )

    def times(self, block: int) -> Iterator[float]:
        """Processor seconds of an update, block after block; the first one compiles."""
        params = self._start(TUNING)
        opt_state = self._init(params)
        batches = _slice(self._task.batches(TUNING, block, self._batch), 0, block)
        while True:
            clock = time.process_time()
            params, opt_state = jax.block_until_ready(
                self._train(params, opt_state, batches, np.float32(self._task.rate))
            )
            yield (time.process_time() - clock) / block


def _slice(batches, start, count):
    return jax.tree.map(lambda x: jnp.asarray(x[start : start + count]), batches)


@functools.lru_cache(maxsize=1)
def bench(*arguments: Any) -> Bench:
    jax.clear_caches()  # Of the one before.
    return Bench(*arguments)


def run(config: Config) -> Result:
    """Trains once; runs that differ in rate and seed only share their programs."""
    c = config
    return bench(c.task, c.method, c.setting, c.steps, c.batch, c.weights).run(
        c.rate, c.seed
    )
