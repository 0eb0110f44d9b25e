"""Runs: tuning one base by one method."""

import dataclasses
import functools
import pathlib
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import optax_matrix as om
from examples.study.bench import results
from examples.study.bench.runs import FEWER, Bench
from examples.study.bench.tasks import Task
from examples.study.equal.config import TUNING
from examples.study.posttrain import bases, methods
from examples.study.posttrain.changes import CHANGES, task_of
from examples.study.posttrain.protocol import ADAPTERS, Config, Entry, Outcome, due


@dataclasses.dataclass(frozen=True)
class Adapted(Task):
    """A task whose trained weights are adapters of fixed ones."""

    change: str = ""
    base: str = ""

    def init(self, seed):
        return methods.factors(self.change, bases.weights(self.change, self.base), seed)

    def mean_loss(self, params, batch):
        fixed = bases.weights(self.change, self.base)
        return super().mean_loss(methods.merged(self.change, fixed, params), batch)


@functools.lru_cache(maxsize=1)
def _bench(change: str, base: str, method: str, steps: int) -> Bench:
    jax.clear_caches()  # Of the one before.
    task = task_of(change)
    form = Config(change, base, method, steps, 0.0, 0.0, None, None)
    start = None
    if method in ADAPTERS:
        fields = {f.name: getattr(task, f.name) for f in dataclasses.fields(Task)}
        task = Adapted(**fields, change=change, base=base)
    else:
        start = lambda *_: jax.tree.map(jnp.asarray, bases.weights(change, base))
    made = functools.partial(methods.optimizer, form)
    return Bench(task, made, steps, task.batch, start)


def run(config: Config) -> Outcome:
    """Tunes once; runs that differ in numbers only share their programs."""
    begin = time.perf_counter()
    is_trial = config.seed in TUNING
    bench = _bench(config.change, config.base, config.method, config.steps)
    found: dict[str, Any] = {}
    held_out = CHANGES[config.change].held_out("validation" if is_trial else "test")
    after = lambda last: None if is_trial else found.update(_after(config, last))
    numbers, every = methods.numbers_of(config), FEWER if is_trial else 1
    result = bench.run(numbers, config.seed, held_out, every, after)
    return Outcome(
        loss=result.loss,
        old=found.get("old"),
        curve=result.curve,
        stable_rank=found.get("stable_rank"),
        cosine=found.get("cosine"),
        size=found.get("size"),
        seconds=round(time.perf_counter() - begin, 1),
    )


def _after(config, last):
    before = bases.weights(config.change, config.base)
    if config.method in ADAPTERS:
        last = methods.merged(config.change, before, last)
    found = spectrum(before, last, task_of(config.change).arena.dimension_numbers)
    return {"old": round(bases.old_loss(config.change, last), 5)} | found


def spectrum(before: Any, after: Any, numbers: Any) -> dict[str, float]:
    """Stable rank of the changes of matrices, their cosine to the weights, their size.

    Args:
        before: Weights.
        after: The same ones later.
        numbers: Which of them are matrices, as `on_matrices` takes it.

    Returns:
        ``stable_rank``, ``cosine`` and ``size``, means over all matrices.
    """
    norm = lambda x: jnp.linalg.norm(x, axis=(-2, -1))

    def measure(w, new):
        change, old = new - w, norm(w)
        overlap = (change * w).sum((-2, -1)) / (old * jnp.maximum(norm(change), 1e-30))
        rank = om.diagnostics.stable_rank(change)
        return {"stable_rank": rank, "cosine": overlap, "size": norm(change) / old}

    of = functools.partial(om.diagnostics.of_matrices, dimension_numbers=numbers)
    each = of(measure, before, after).values()
    means = jax.tree.map(lambda *x: np.concatenate(x).mean(), *each)
    return {name: round(float(x), 5) for name, x in means.items()}


def run_next(entry: Entry, path: pathlib.Path, command: str) -> bool:
    """Does the next run of an entry and adds it to a file; False if it has had all."""
    config = due(entry, results.read(path, Config, Outcome))
    if config:
        results.append(config, run(config), path, command)
    return config is not None
