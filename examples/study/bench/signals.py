"""Rounding errors of polar kernels on gradients and momenta of two texts.

    python -m examples.study bench signals

Trains the tiny LLaMA of *books* and the one of *shakespeare* under Muon for 300 steps.
At some of them it keeps the gradient of each matrix in the layers and its momentum as
Muon hands it to the kernel, and compares what kernels make of both with the same
iteration in float64. Matrices with the same singular values and random singular vectors
stand for larger ones; of those, the kernels also get one whose entries are as small as
in a matrix of 8192 x 28672 of norm one, where float16 has fewer digits.

Kernels run on a CPU, where XLA rounds the factors of each product to the dtype and adds
in float32, as tensor cores do.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from examples.study.bench.runs import optimizer
from examples.study.bench.search import SEEDS
from examples.study.bench.spectra import undecayed
from examples.study.bench.tasks import TASKS, Task
from examples.study.bench.config import Config
from optax_matrix import linalg
from optax_matrix._paths import named_leaves

COMMAND = "python -m examples.study bench signals"
TEXTS = "books", "shakespeare"
AT = (1, 101, 201, 301)  # Steps whose signals are kept.
DECAY = 0.95  # Of the momentum, as Muon has it.
KERNELS: dict[str, Callable[..., jax.Array]] = {
    "Newton-Schulz, float32": linalg.newton_schulz,
    "Newton-Schulz, bfloat16": functools.partial(
        linalg.newton_schulz, compute_dtype=jnp.bfloat16
    ),
    "Gram form, float32": linalg.gram_newton_schulz,
    "Gram form, float16": functools.partial(
        linalg.gram_newton_schulz, compute_dtype=jnp.float16
    ),
    "Gram form, bfloat16": functools.partial(
        linalg.gram_newton_schulz, compute_dtype=jnp.bfloat16
    ),
}
TABLES = {"JORDAN": linalg.JORDAN, "YOU": linalg.YOU}
LARGE = (8192, 28672)


def signals(task: Task, build: Any, config: Config, at: tuple[int, ...] = AT) -> dict:
    """Gradients and momenta of all matrices in the layers, at some steps of a run.

    Returns:
        Arrays by ``(step, "gradient" or "momentum", path)``.
    """
    tx = optimizer(build, config.rate, config.steps)

    def step(carry, batch):
        params, state, sums = carry
        gradient = jax.grad(task.mean_loss)(params, batch)
        updates, state = tx.update(gradient, state, params)
        add = lambda total, g: DECAY * total + g
        sums = jax.tree.map(add, sums, gradient)
        ahead = jax.tree.map(add, sums, gradient)
        return (optax.apply_updates(params, updates), state, sums), (gradient, ahead)

    @jax.jit
    def run(carry, batches):
        carry, seen = jax.lax.scan(step, carry, batches)
        return carry, jax.tree.map(lambda x: x[-1], seen)

    params = jax.jit(task.init)(config.seed)
    carry = params, tx.init(params), jax.tree.map(jnp.zeros_like, params)
    batches = task.batches(config.seed, config.steps, config.batch)
    found, before = {}, 0
    for count in at:
        carry, seen = run(carry, batches[before:count])
        before = count
        for kind, tree in zip(("gradient", "momentum"), seen, strict=True):
            for path, x in named_leaves(tree).items():
                if x.ndim == 2 and "layers" in path:
                    found[count, kind, path] = np.asarray(x, np.float64)
    return found


@dataclasses.dataclass(frozen=True)
class Errors:
    """What a kernel makes of one matrix, beside the same iteration in float64.

    Attributes:
        rounding: Norm of the difference, over that of the exact result.
        top: The largest singular value of the result, minus that of the exact one.
    """

    rounding: float
    top: float


def iterated(x: np.ndarray, rows: Any, smaller: float = 1.0) -> np.ndarray:
    """Newton-Schulz in float64, from matrices of this norm: ``1 / smaller``."""
    x = x / (np.linalg.norm(x, axis=(-2, -1), keepdims=True) * smaller)
    wide = x.shape[-2] <= x.shape[-1]
    x = x if wide else x.swapaxes(-1, -2)
    for a, b, c in rows:
        gram = x @ x.swapaxes(-1, -2)
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x if wide else x.swapaxes(-1, -2)


def errors(
    kernel: Callable[..., jax.Array], x: np.ndarray, table: Any, smaller: float = 1.0
) -> list[Errors]:
    """Of each matrix of a stack ``(k, m, n)``; see `iterated`."""
    rows = [table[min(i, len(table) - 1)] for i in range(5)]
    norm = np.linalg.norm(x / np.abs(x).max((-2, -1), keepdims=True), axis=(-2, -1))
    eps = np.float32((smaller - 1) * norm[:, None, None])
    run = jax.jit(functools.partial(kernel, coefficients=rows, steps=5))
    got = np.asarray(run(np.float32(x), eps=eps), np.float64)
    exact = iterated(x, rows, smaller)
    norms = lambda x: np.linalg.norm(x, axis=(-2, -1))
    tops = lambda x: np.linalg.norm(x, 2, axis=(-2, -1))
    pairs = zip(norms(got - exact) / norms(exact), tops(got) - tops(exact), strict=True)
    return [Errors(float(a), float(b)) for a, b in pairs]
