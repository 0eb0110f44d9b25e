"""One tree and one stream of gradients for every recipe, and the two ways to run it."""

import jax
import numpy as np
import optax
from optax.contrib import MuonDimensionNumbers

STEPS = 20
KERNEL = MuonDimensionNumbers(-2, -1)

SHAPES = {
    "tall": (8, 4),  # (in, out), as Flax stores kernels
    "wide": (4, 8),
    "square": (6, 6),
    "layers": (3, 4, 8),
    "embedding": (12, 4),
    "norm": (6,),
}
DIMENSION_NUMBERS = {
    name: None if name in ("embedding", "norm") else KERNEL for name in SHAPES
}
MATRICES = tuple(name for name, numbers in DIMENSION_NUMBERS.items() if numbers)


def params():
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(shape) for name, shape in SHAPES.items()}


def noise(steps=STEPS):
    rng = np.random.default_rng(1)
    return {k: rng.standard_normal((steps, *shape)) for k, shape in SHAPES.items()}


def gradient(w, noise_t):
    """Of 0.05 |w|^2 plus noise: feeds the trajectory back into itself."""
    return 0.1 * w + noise_t


def run_jax(tx, start, noises):
    """All steps in one compiled scan; returns the parameters after each, and state."""

    @jax.jit
    def scan(start, noises):
        def body(carry, noise_t):
            p, state = carry
            updates, state = tx.update(jax.tree.map(gradient, p, noise_t), state, p)
            p = optax.apply_updates(p, updates)
            return (p, state), p

        (_, state), path = jax.lax.scan(body, (start, tx.init(start)), noises)
        return path, state

    path, state = scan(start, noises)
    return jax.device_get(path), state


def run_numpy(matrix_step, other_step, start, noises, vector_step=None):
    """The same with one-matrix restatements; matrices as out x in, one at a time.

    Vectors may have a step of their own.
    """
    path = {}
    for name, w in start.items():
        if name not in MATRICES:
            step = vector_step if vector_step and w.ndim < 2 else other_step
            path[name] = _run_one(step, w, noises[name])
            continue
        stack = np.swapaxes(w, -1, -2).reshape(-1, w.shape[-1], w.shape[-2])
        n = np.swapaxes(noises[name], -1, -2)
        n = n.reshape(len(n), *stack.shape)
        runs = [_run_one(matrix_step, stack[i], n[:, i]) for i in range(len(stack))]
        runs = np.swapaxes(np.stack(runs, 1), -1, -2)
        path[name] = runs.reshape(len(n), *w.shape)
    return path


def _run_one(step, w, noises):
    state, path = {}, []
    for noise_t in noises:
        w = step(w, gradient(w, noise_t), state)
        path.append(w)
    return np.stack(path)
