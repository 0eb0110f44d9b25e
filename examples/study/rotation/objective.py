"""ARO's objective J(R) = <M, R f(R'M)> of a momentum M and a base f."""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import optax_matrix as om
from examples.pretrain.config import SIZES
from examples.pretrain.data import Windows, open_data
from examples.pretrain.step import initial_weights, loss_and_gradient
from examples.study.rotation import training
from examples.study.rotation.mnist import Digits

BASES = {
    "sinkhorn": om.equilibrate(om.linalg.sinkhorn),
    "sign": optax.scale_by_sign(),
    "row_norm": om.equilibrate(om.linalg.scale_rows),
}
POLICIES = ("identity", "eigen_exact", "aro", "polar")


def objective(base: str, policy: str, momenta: Any) -> np.ndarray:
    """J under a policy that follows momenta from step to step, starting from R = I.

    Args:
        base: One of `BASES`.
        policy: One of `POLICIES`, or any name that `om.rotate` takes.
        momenta: Tree of `(steps, ..., m, n)`.

    Returns:
        J of every matrix at every step, in one row.
    """

    def follow(stack):
        return om.diagnostics.follow_policies(stack, BASES[base], [policy])[policy]

    values = [np.ravel(follow(x).objective) for x in jax.tree.leaves(momenta)]
    return np.concatenate(values)


def compare(base: str, momenta: Any) -> dict[str, float]:
    """ARO and the others against the eigenvectors of the momentum, as in Fig. 2.

    Returns:
        `share`, the share of the momenta for which J is higher under ARO than under
        the eigenvectors, and the mean gain of each other policy over these.
    """
    values = {policy: objective(base, policy, momenta) for policy in POLICIES}
    eigen = values.pop("eigen_exact")
    gains = {policy: float(np.mean(j / eigen - 1)) for policy, j in values.items()}
    return {"share": float(np.mean(values["aro"] > eigen)), **gains}


def gaussian(count: int = 32, shape: tuple[int, int] = (96, 256), seed: int = 0) -> Any:
    """One step of random momenta."""
    return jax.random.normal(jax.random.key(seed), (1, count, *shape))


def of_mlp(digits: Digits, steps: int, batch: int, seed: int = 0) -> Any:
    """Momenta of the MLP on MNIST, trained by ARO on mini-batches."""
    order = training.batches(len(digits.labels), batch, steps, seed)
    some = lambda chosen: Digits(digits.pixels[chosen], digits.labels[chosen])
    gradient = lambda weights, data: training.loss_and_gradient(weights, data)[1]
    weights = training.initial_weights(seed, digits.pixels.shape[1])
    rate = training.learning_rate(steps)
    return _along_training(gradient, weights, rate, map(some, order))


def of_llama(steps: int, seed: int = 0) -> Any:
    """Momenta of the tiny LLaMA on the books, trained by ARO."""
    config = SIZES["tiny"]
    data = open_data("books", Windows(context=config.context, batch=16, seed=seed))
    gradient = lambda weights, windows: loss_and_gradient(config, weights, windows)[1]
    windows = (next(batch)[0] for batch in [iter(data.train)] * steps)
    return _along_training(gradient, initial_weights(config, seed), 5e-3, windows)


def _along_training(
    gradient: Callable[[Any, Any], Any],
    weights: Any,
    learning_rate: optax.ScalarOrSchedule,
    data: Iterable[Any],
) -> list[jax.Array]:
    """The momenta of all matrices, `(steps, ..., out, in)`, one stack per shape."""
    tx, average = om.aro(learning_rate, weight_decay=0.0), optax.trace(training.B1)
    labels = jax.tree.leaves(om.matrices.label_params()(weights))

    @jax.jit
    def update(grads, weights, state, mean):
        momentum, mean = average.update(grads, mean)
        updates, state = tx.update(grads, state, weights)
        pairs = zip(jax.tree.leaves(momentum), labels, strict=True)
        matrices = [m.mT for m, label in pairs if label == "matrix"]
        return optax.apply_updates(weights, updates), state, mean, matrices

    state, mean, momenta = jax.jit(tx.init)(weights), average.init(weights), []
    for batch in data:
        grads = gradient(weights, batch)
        weights, state, mean, matrices = update(grads, weights, state, mean)
        momenta.append(matrices)
    return _stacks(jax.tree.map(lambda *m: jnp.stack(m), *momenta))


def _stacks(matrices: list[jax.Array]) -> list[jax.Array]:
    """Matrices of one shape as a stack, so that fewer programs are compiled."""
    groups: dict[Any, list[jax.Array]] = {}
    for matrix in matrices:
        groups.setdefault(matrix.shape, []).append(matrix)
    return [jnp.stack(group, axis=1) for group in groups.values()]
