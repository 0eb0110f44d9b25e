"""PPO on the pendulum: the whole training is one scan."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from examples.study.reinforce import pendulum
from examples.study.reinforce.formulas import (
    clipped,
    estimated_advantages,
    normal_divergence,
    normal_entropy,
    normal_log_density,
)

WIDTH, LAYERS = 64, 2  # Of the policy and of the value; layers between both ends.
ROUNDS, PENDULUMS, EPOCHS, PARTS = 20, 16, 5, 8
UPDATES = ROUNDS * EPOCHS * PARTS
GAMMA, DECAY, CLIP, OF_VALUES, SCALE = 0.95, 0.95, 0.2, 0.5, 0.1
NAMES = "inputs", *(f"hidden_{i}" for i in range(LAYERS)), "outputs"
EVALUATED = 128  # Episodes, from the same states in all runs.


def network(key: jax.Array, size: float) -> dict[str, Any]:
    """Weights from 3 inputs to one output of this size."""
    widths = [pendulum.INPUTS, *[WIDTH] * (LAYERS + 1), 1]
    sizes = [*[1.0] * (LAYERS + 1), size]
    found = {}
    shapes = itertools.pairwise(widths)
    keys = jax.random.split(key, len(NAMES))
    for name, shape, one, scale in zip(NAMES, shapes, keys, sizes, strict=True):
        kernel = scale * jax.random.normal(one, shape) / shape[0] ** 0.5
        found[name] = {"kernel": kernel, "bias": jnp.zeros(shape[1])}
    return found


def init(key: jax.Array) -> dict[str, Any]:
    """Weights of the policy and of the value, and the log deviation of torques."""
    policy, value = jax.random.split(key)
    return {
        "policy": network(policy, 0.01),
        "value": network(value, 1.0),
        "log_scale": jnp.zeros(()),
    }


def apply(weights: dict[str, Any], inputs: jax.Array) -> jax.Array:
    """The output of a network, ``(...)`` for inputs ``(..., 3)``."""
    *others, last = (weights[name] for name in NAMES)
    for layer in others:
        inputs = jnp.tanh(inputs @ layer["kernel"] + layer["bias"])
    return (inputs @ last["kernel"] + last["bias"])[..., 0]


def collected(params: Any, key: jax.Array) -> dict[str, jax.Array]:
    """One episode of each pendulum, flat, with what `loss` needs."""
    begin, acting = jax.random.split(key)

    def step(states, key):
        inputs = pendulum.observed(states)
        mean, value = apply(params["policy"], inputs), apply(params["value"], inputs)
        noise = jax.random.normal(key, mean.shape)
        torque = mean + jnp.exp(params["log_scale"]) * noise
        states, reward = pendulum.moved(states, torque)
        before = normal_log_density(torque, mean, params["log_scale"])
        return states, (inputs, mean, torque, before, value, SCALE * reward)

    keys = jax.random.split(acting, pendulum.STEPS)
    states, taken = jax.lax.scan(step, pendulum.start(begin, PENDULUMS), keys)
    inputs, mean, torque, before, values, rewards = taken
    last = apply(params["value"], pendulum.observed(states))
    advantages = estimated_advantages(rewards, values, last, GAMMA, DECAY)
    found = {
        "inputs": inputs,
        "mean": mean,
        "torque": torque,
        "before": before,
        "targets": advantages + values,
        "advantages": (advantages - advantages.mean()) / (advantages.std() + 1e-8),
    }
    return {name: x.reshape(-1, *x.shape[2:]) for name, x in found.items()}


def loss(params: Any, taken: dict[str, jax.Array]) -> jax.Array:
    """The loss of PPO: the clipped objective, and half the squared error of values."""
    mean = apply(params["policy"], taken["inputs"])
    now = normal_log_density(taken["torque"], mean, params["log_scale"])
    gain = clipped(now - taken["before"], taken["advantages"], CLIP)
    error = apply(params["value"], taken["inputs"]) - taken["targets"]
    return -gain.mean() + OF_VALUES * jnp.square(error).mean()


def score(params: Any) -> jax.Array:
    """Mean return of episodes without noise in the torque."""

    def step(states, _):
        return pendulum.moved(
            states, apply(params["policy"], pendulum.observed(states))
        )

    states = pendulum.start(jax.random.key(EVALUATED), EVALUATED)
    rewards = jax.lax.scan(step, states, length=pendulum.STEPS)[1]
    return rewards.sum(0).mean()


def train(tx: optax.GradientTransformation, seed: Any) -> dict[str, jax.Array]:
    """Trains; returns the measures before the first round and after each.

    The divergence is that of the policy before a round from the policy after it.

    Args:
        tx: The optimizer, which makes `UPDATES` updates.
        seed: Of the weights, the episodes, and their order.
    """

    def update(carry, part):
        params, state = carry
        updates, state = tx.update(jax.grad(loss)(params, part), state, params)
        return (optax.apply_updates(params, updates), state), None

    def around(carry, key):
        drawing, *orders = jax.random.split(key, 1 + EPOCHS)
        old = carry[0]["log_scale"]
        taken = collected(carry[0], drawing)
        size = len(taken["mean"])
        order = [jax.random.permutation(one, size) for one in orders]
        order = jnp.stack(order).reshape(EPOCHS * PARTS, -1)
        parts = jax.tree.map(lambda x: x[order], taken)
        carry = jax.lax.scan(update, carry, parts)[0]
        new, mean = carry[0], apply(carry[0]["policy"], taken["inputs"])
        away = normal_divergence(taken["mean"], old, mean, new["log_scale"]).mean()
        return carry, _measures(new, away)

    first, rest = jax.random.split(jax.random.key(seed))
    params = init(first)
    keys = jax.random.split(rest, ROUNDS)
    _, after = jax.lax.scan(around, (params, tx.init(params)), keys)
    before = _measures(params, jnp.zeros(()))
    return jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), before, after)


def _measures(params, away):
    spread = normal_entropy(params["log_scale"])
    return {"score": score(params), "entropy": spread, "divergence": away}


def steps() -> np.ndarray:
    """The steps of pendulums that `train` has made where it measures."""
    return np.arange(ROUNDS + 1) * PENDULUMS * pendulum.STEPS
