"""The formulas of both tasks: advantages, objective, entropy and divergence."""

import math

import jax
import jax.numpy as jnp


def group_advantages(rewards: jax.Array, eps: float = 1e-6) -> jax.Array:
    """Rewards of each prompt, standardized over its group.

    Args:
        rewards: Of shape ``(prompts, group)``.
        eps: Added to the deviation over the group, which divides by the group's size.
    """
    centred = rewards - rewards.mean(-1, keepdims=True)
    return centred / (rewards.std(-1, keepdims=True) + eps)


def estimated_advantages(
    rewards: jax.Array, values: jax.Array, last: jax.Array, gamma: float, decay: float
) -> jax.Array:
    r"""Generalized advantages of a task that never ends early.

    .. math::
        A_t = \delta_t + \gamma \lambda A_{t+1}, \qquad
        \delta_t = r_t + \gamma V_{t+1} - V_t

    Args:
        rewards: Of shape ``(time, ...)``.
        values: Of the states before each step, of the same shape.
        last: Values of the states after the last step.
        gamma: Discount.
        decay: The decay of the sum, lambda.
    """
    after = jnp.concatenate([values[1:], last[None]])
    errors = rewards + gamma * after - values

    def step(later, error):
        now = error + gamma * decay * later
        return now, now

    return jax.lax.scan(step, jnp.zeros_like(last), errors, reverse=True)[1]


def clipped(log_ratio: jax.Array, advantages: jax.Array, clip: float) -> jax.Array:
    """The objective of PPO and GRPO, which is maximized.

    Args:
        log_ratio: Log probability of an action now, minus that when it was taken.
        advantages: Advantages.
        clip: Bound of the ratio's distance from 1.
    """
    ratio = jnp.exp(log_ratio)
    bounded = jnp.clip(ratio, 1 - clip, 1 + clip)
    return jnp.minimum(ratio * advantages, bounded * advantages)


def entropy(logits: jax.Array) -> jax.Array:
    """Entropy of a choice, in nats, over the last axis."""
    logs = jax.nn.log_softmax(logits)
    return -(jnp.exp(logs) * logs).sum(-1)


def divergence(logits: jax.Array, base: jax.Array) -> jax.Array:
    """KL divergence of a choice from that of other logits, over the last axis."""
    logs = jax.nn.log_softmax(logits)
    return (jnp.exp(logs) * (logs - jax.nn.log_softmax(base))).sum(-1)


def normal_log_density(x: jax.Array, mean: jax.Array, log_scale: jax.Array):
    """Log density of a normal distribution."""
    z = (x - mean) * jnp.exp(-log_scale)
    return -0.5 * z * z - log_scale - 0.5 * math.log(2 * math.pi)


def normal_entropy(log_scale: jax.Array) -> jax.Array:
    """Entropy of a normal distribution, in nats."""
    return log_scale + 0.5 * math.log(2 * math.pi * math.e)


def normal_divergence(mean, log_scale, base_mean, base_log_scale) -> jax.Array:
    """KL divergence of a normal distribution from another one."""
    difference = jnp.square((mean - base_mean) * jnp.exp(-base_log_scale))
    ratio = jnp.exp(2 * (log_scale - base_log_scale))
    return base_log_scale - log_scale + 0.5 * (ratio + difference - 1)
