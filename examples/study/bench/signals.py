"""Rounding errors of polar kernels on gradients and momenta of two texts.

    python -m examples.study bench signals

Trains the models of *books* and *shakespeare* under Muon for 300 steps. At some of them
it keeps the gradient of each matrix in the layers, and its momentum as Muon hands it to
the kernel, and compares what kernels make of both with the same iteration in float64.
The last column is for the same matrices divided by so much that their entries are as
small as those of 8192 x 28672 with norm one, where float16 has fewer digits. Each cell
has the median and the largest error.

Kernels run on a CPU, where XLA rounds the factors of each product to the dtype and adds
in float32, as tensor cores do.
"""

import collections
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from examples.study.bench import results, spectra
from examples.study.bench.config import Config
from examples.study.bench.markdown import lines
from examples.study.bench.runs import optimizer
from examples.study.bench.tasks import TASKS, Task
from optax_matrix import linalg
from optax_matrix._paths import named_leaves

Key = tuple[int, str, str]  # Step, "gradient" or "momentum", path.
Table = Sequence[Sequence[float]]
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
SMALL = "entries as of 8192 x 28672"


def signals(
    task: Task,
    build: Any,
    config: Config,
    at: Sequence[int] = AT,
    inside: str = "layers",
) -> dict[Key, np.ndarray]:
    """Gradients and momenta of all matrices in the layers, at some steps of a run.

    Args:
        task: Model and data.
        build: The method, a function of a schedule.
        config: Learning rate, seed, steps and batch.
        at: The steps, in order.
        inside: What the paths of the matrices contain.
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
                if x.ndim == 2 and inside in path:
                    found[count, kind, path] = np.asarray(x, np.float64)
    return found


class Errors(NamedTuple):
    """What a kernel makes of one matrix, beside the same iteration in float64.

    Attributes:
        rounding: Norm of the difference, over that of the exact result.
        excess: The largest singular value of the result, minus that of the exact one.
    """

    rounding: float
    excess: float


def iterated(x: np.ndarray, rows: Table, shrink: float = 1.0) -> np.ndarray:
    """Newton-Schulz in float64, from matrices of the norm ``1 / shrink``."""
    x = x / (np.linalg.norm(x, axis=(-2, -1), keepdims=True) * shrink)
    wide = x.shape[-2] <= x.shape[-1]
    x = x if wide else x.swapaxes(-1, -2)
    for a, b, c in rows:
        gram = x @ x.swapaxes(-1, -2)
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x if wide else x.swapaxes(-1, -2)


def errors(
    kernel: Callable[..., jax.Array], x: np.ndarray, table: Table, shrink: float = 1.0
) -> list[Errors]:
    """Of each matrix of a stack ``(k, m, n)``; see `iterated`."""
    rows = [table[min(i, len(table) - 1)] for i in range(5)]
    norm = np.linalg.norm(x / np.abs(x).max((-2, -1), keepdims=True), axis=(-2, -1))
    eps = np.float32((shrink - 1) * norm + 1e-7)  # Relative to the largest entry.
    run = functools.partial(kernel, coefficients=rows, steps=5)
    each = jax.jit(jax.vmap(lambda x, eps: run(x, eps=eps)))
    got, exact = np.float64(each(np.float32(x), eps)), iterated(x, rows, shrink)
    norms = lambda x: np.linalg.norm(x, axis=(-2, -1))
    tops = lambda x: np.linalg.norm(x, 2, axis=(-2, -1))
    pairs = zip(norms(got - exact) / norms(exact), tops(got) - tops(exact), strict=True)
    return [Errors(float(a), float(b)) for a, b in pairs]


def table(found: Mapping[str, Mapping[Key, np.ndarray]]) -> str:
    """Errors of every kernel with every table of coefficients, by text and kind.

    Args:
        found: What `signals` returned, by text.
    """
    stacks = collections.defaultdict(list)
    for text, each in found.items():
        for (_, kind, _), x in each.items():
            stacks[x.shape].append((f"{text}, {kind}", x))
    columns = sorted({column for stack in stacks.values() for column, _ in stack})

    def row(name, label):
        rounding, excess = collections.defaultdict(list), []
        for (m, n), stack in stacks.items():
            of = functools.partial(
                *(errors, KERNELS[name], np.stack([x for _, x in stack]), TABLES[label])
            )
            for (column, _), error in zip(stack, of(), strict=True):
                rounding[column].append(error.rounding)
                excess.append(error.excess)
            small = of(shrink=(LARGE[0] * LARGE[1] / (m * n)) ** 0.5)
            rounding[SMALL] += [error.rounding for error in small]
        cells = [rounding[column] for column in (*columns, SMALL)]
        errors_of = [f"{np.median(cell):.4f}, {max(cell):.4f}" for cell in cells]
        return f"{name}, `{label}`", f"{max(excess):+.3f}", *errors_of

    headings = ("kernel", "largest singular value", *columns, SMALL)
    return lines(headings, [row(name, label) for label in TABLES for name in KERNELS])


def run() -> str:
    """Trains on both texts; returns the table."""
    found = {}
    for text in TEXTS:
        task, config = TASKS[text], spectra.configs(results.read())["muon"]
        config = dataclasses.replace(config, task=text, steps=AT[-1], batch=task.batch)
        build = spectra.undecayed(config, task.arena)
        found[text] = signals(task, build, config)
    return table(found)
