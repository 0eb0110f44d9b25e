"""The base: the tiny LLaMA of two books, which then saw some sums.

It is trained by AdamW alone: first as the base of the study of tuning (`posttrain`),
then for `STEPS` steps on lines of sums, so that it knows their form and is right in a
quarter of its answers.
"""

import functools
import os
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from examples.study.bench.runs import Bench
from examples.study.bench.tasks import CLIP, TASKS
from examples.study.equal import methods, runs
from examples.study.posttrain.methods import pretraining
from examples.study.reinforce import sums

TASK, FIRST, SEED = TASKS["books"], 1600, 100
STEPS, BATCH, RATE = 200, 32, 1e-3
CACHE = pathlib.Path("runs/reinforce")  # Weights; made again where they are missing.


@functools.cache
def weights() -> Any:
    """The weights of the base; they are trained first where they are missing."""
    books = functools.partial(_kept, f"books_{FIRST}", _of_books)
    return _kept(f"sums_{FIRST}_{STEPS}", lambda: taught(books()))


def _kept(name: str, make: Callable[[], Any]) -> Any:
    """Weights of the model from a file, which is made if there is none."""
    path = CACHE / f"{name}.npz"
    if not path.exists():
        leaves = jax.tree.leaves(make())
        CACHE.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}.npz")
        np.savez(part, **{f"{i}": np.asarray(x) for i, x in enumerate(leaves)})
        part.replace(path)
    with np.load(path) as arrays:
        leaves = [arrays[f"{i}"] for i in range(len(arrays.files))]
    like = jax.eval_shape(TASK.init, 0)
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def _of_books() -> Any:
    settings = runs.settings_of(pretraining("books", "adamw"))
    made = lambda numbers: methods.optimizer("adamw", numbers, TASK.arena, FIRST)
    start = functools.partial(methods.start, "adamw", TASK.arena)
    return Bench(TASK, made, FIRST, TASK.batch, start).trained(settings, SEED)


def taught(params: Any, steps: int = STEPS) -> Any:
    """Weights after some steps on lines of sums, of which the answers count."""
    tx = optax.chain(optax.clip_by_global_norm(CLIP), optax.adamw(RATE))
    lines = np.concatenate([sums.PROMPTS, sums.ANSWERS], 1)[sums.ASKED]
    which = np.random.default_rng(SEED).integers(len(lines), size=(steps, BATCH))

    def step(carry, rows):
        params, state = carry
        updates, state = tx.update(jax.grad(_loss)(params, rows), state, params)
        return (optax.apply_updates(params, updates), state), None

    train = jax.jit(lambda *given: jax.lax.scan(step, *given)[0][0])
    return train((params, tx.init(params)), lines[which])


def _loss(params, rows):
    answers = rows[:, sums.PROMPT :]
    logits = logits_of(params, rows)
    each = optax.softmax_cross_entropy_with_integer_labels(logits, answers)
    counted = sums.counted(answers)
    return (each * counted).sum() / counted.sum()


def logits_of(params: Any, rows: jax.Array) -> jax.Array:
    """Logits of the bytes of answers, ``(rows, ANSWER, vocab)``, given whole lines."""
    return next_logits(params, rows[:, :-1])[:, sums.PROMPT - 1 :]


def next_logits(params: Any, rows: jax.Array) -> jax.Array:
    """Logits of the byte after each one, ``(rows, time, vocab)``."""
    return nnx.merge(TASK.graph, params)(jnp.asarray(rows))
