"""The trained models that are tuned: by AdamW, and by Muon to the same loss."""

import functools
import json
import os
import pathlib
from typing import Any

import jax
import numpy as np

from examples.pretrain.directory import write_whole
from examples.study.bench.runs import Bench
from examples.study.bench.tasks import TASKS
from examples.study.equal import methods, runs, sets
from examples.study.posttrain.changes import CHANGES
from examples.study.posttrain.methods import pretraining
from examples.study.posttrain.protocol import BASES

PATH = pathlib.Path(__file__).parents[1] / "results" / "posttrain_bases.json"
CACHE = pathlib.Path("runs/posttrain")  # Weights; made again where they are missing.
SEED, EVERY = 100, 25  # Muon's steps are a multiple of the latter.


def find(path: pathlib.Path = PATH) -> dict[str, dict[str, list]]:
    """Steps and test loss of each base, by task; what is missing is trained first.

    Muon's steps are those whose loss is nearest to AdamW's, by bisection.
    """
    found = json.loads(path.read_text()) if path.exists() else {}
    for change in CHANGES:
        if change in found:
            continue
        steps = TASKS[change].steps * CHANGES[change].length
        goal = _loss(change, "adamw", steps)
        tried = {steps: _loss(change, "muon", steps)}
        low, high = EVERY * 4, steps
        while high - low > EVERY:
            middle = (low + high) // (2 * EVERY) * EVERY
            tried[middle] = _loss(change, "muon", middle)
            low, high = (low, middle) if tried[middle] < goal else (middle, high)
        best = min(tried, key=lambda count: abs(tried[count] - goal))
        found[change] = {"adamw": [steps, goal], "muon": [best, tried[best]]}
        write_whole(path, json.dumps(found, indent=1) + "\n")
    return found


def prepare() -> None:
    """Makes the weights of all bases."""
    for change, of_task in find().items():
        for base in BASES:
            _cached(change, base, of_task[base][0])


@functools.cache
def weights(change: str, base: str) -> Any:
    """The weights of a base."""
    steps = json.loads(PATH.read_text())[change][base][0]
    with np.load(_cached(change, base, steps)) as arrays:
        leaves = [arrays[f"{i}"] for i in range(len(arrays.files))]
    like = jax.eval_shape(TASKS[change].init, 0)
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def _cached(change, base, steps):
    path = CACHE / f"{change}_{base}_{steps}.npz"
    if not path.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        leaves = jax.tree.leaves(_trained(change, base, steps))
        part = path.with_suffix(f".{os.getpid()}.npz")
        np.savez(part, **{f"{i}": np.asarray(x) for i, x in enumerate(leaves)})
        part.replace(path)
    return path


def _bench(change, base, steps):
    task = TASKS[change]
    return Bench(
        task,
        lambda settings: methods.optimizer(base, settings, task.arena, steps),
        steps,
        task.batch,
        functools.partial(methods.start, base, task.arena),
    )


def _trained(change, base, steps):
    settings = runs.settings_of(pretraining(change, base))
    return _bench(change, base, steps).trained(settings, SEED)


@functools.cache
def _measure(change: str) -> Any:
    return jax.jit(lambda params, parts: _mean(TASKS[change], params, parts))


def _mean(task, params, parts):
    return jax.lax.map(lambda batch: task.mean_loss(params, batch), parts).mean()


def old_loss(change: str, params: Any) -> float:
    """The test loss of weights on the data of the first training."""
    return float(_measure(change)(params, sets.held_out(change, "test")))


def _loss(change, base, steps):
    return round(old_loss(change, _trained(change, base, steps)), 5)
