"""An MLP on MNIST under one rotation policy, and the alignment of its updates.

ARO, Section 7 and Appendix C.4: 256 hidden units, ReLU, momentum 0.95, a learning rate
of 1e-3 with 100 steps of warm-up and a cosine to a tenth, updates of equal size.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import optax_matrix as om
from examples.study.rotation.mnist import Digits

HIDDEN, CLASSES = 256, 10
LEARNING_RATE = 1e-3
B1, B2 = 0.95, 0.99


class Curve(NamedTuple):
    """One run, step by step, before each update.

    Attributes:
        losses: Loss on all images.
        alignment: `alignment` of the update with the gradient on all images.
    """

    losses: Any
    alignment: Any


def initial_weights(seed: int, pixels: int = 784) -> dict[str, jax.Array]:
    """Kernels `(in, out)`, and no biases: so the policy decides on every parameter."""
    keys = jax.random.split(jax.random.key(seed))
    draw = jax.nn.initializers.he_normal()
    return {
        "hidden": draw(keys[0], (pixels, HIDDEN)),
        "output": draw(keys[1], (HIDDEN, CLASSES)),
    }


def mean_loss(weights: Any, digits: Digits) -> jax.Array:
    """Cross entropy; in float32 exact to the last digits also where it is 1e-12."""
    hidden = jax.nn.relu(digits.pixels @ weights["hidden"])
    logits = hidden @ weights["output"]
    right = jax.nn.one_hot(digits.labels, CLASSES, dtype=bool)
    others = jax.nn.logsumexp(jnp.where(right, -jnp.inf, logits), axis=-1)
    return jax.nn.softplus(others - logits[right.nonzero(size=len(logits))]).mean()


loss_and_gradient = jax.jit(jax.value_and_grad(mean_loss))


def alignment(gradient: Any, direction: Any) -> jax.Array:
    r"""The alignment score, a cosine; 0 if either is zero.

    .. math::
        S_A = \langle \nabla L, \phi \rangle / (\|\nabla L\| \|\phi\|)

    Args:
        gradient: Gradient on all images, a tree.
        direction: What the weights move against, a tree alike.
    """
    unit = lambda tree: optax.tree.scale(1 / _norm(tree), tree)
    return jnp.asarray(optax.tree.vdot(unit(gradient), unit(direction)))


def _norm(tree):
    norm = optax.tree.norm(tree)
    return jnp.where(norm == 0, 1, norm)


def learning_rate(steps: int) -> optax.Schedule:
    """Warm-up of 100 steps, in short runs of a tenth of them; then a cosine."""
    warm_up = min(100, steps // 10)
    return optax.warmup_cosine_decay_schedule(
        0.0, LEARNING_RATE, warm_up, max(steps, warm_up + 1), LEARNING_RATE / 10
    )


def batches(images: int, batch: int, steps: int, seed: int) -> np.ndarray:
    """Indices `(steps, batch)`: epochs, each reshuffled, whole batches only."""
    rng, per_epoch = np.random.default_rng(seed), images // batch
    epochs = -(-steps // per_epoch)
    order = [rng.permutation(images)[: per_epoch * batch] for _ in range(epochs)]
    return np.concatenate(order).reshape(-1, batch)[:steps]


def train(
    policy: str, base: str, digits: Digits, steps: int, batch: int | None, seed: int
) -> Curve:
    """Trains from the weights and on the batches of the seed, whatever the policy.

    Args:
        policy: Policy of `om.scale_by_aro`.
        base: Its base.
        digits: The images.
        steps: Number of updates.
        batch: Images in an update, drawn by the seed; None for all of them.
        seed: Seed.
    """
    tx = om.scale_by_aro(base=base, policy=policy, b1=B1, b2=B2)
    rate, digits = learning_rate(steps), jax.tree.map(jnp.asarray, digits)

    def step(digits, carry, xs):
        (weights, state), (count, chosen) = carry, xs
        loss, gradient = jax.value_and_grad(mean_loss)(weights, digits)
        seen = gradient
        if chosen is not None:
            some = jax.tree.map(lambda x: x[chosen], digits)
            seen = jax.grad(mean_loss)(weights, some)
        direction, state = tx.update(seen, state, weights)
        weights = optax.tree.add_scale(weights, -jnp.asarray(rate(count)), direction)
        return (weights, state), Curve(loss, alignment(gradient, direction))

    @jax.jit
    def run(weights, digits, chosen):
        xs = jnp.arange(steps), chosen
        carry = weights, tx.init(weights)
        return jax.lax.scan(functools.partial(step, digits), carry, xs)[1]

    weights = initial_weights(seed, digits.pixels.shape[1])
    total = len(digits.labels)
    chosen = None if batch is None else batches(total, batch, steps, seed)
    return jax.tree.map(np.asarray, run(weights, digits, chosen))
