"""A pendulum that a limited torque must swing up and hold.

A rod of mass m and length l turns about one end, so that its moment of inertia is
m l² / 3. With the angle from the upright position,

    angle'' = 3 g / (2 l) sin(angle) + 3 / (m l²) torque.

The speed is updated first, then the angle with the new speed. The constants are those
of the classic task: 200 steps of 0.05 seconds, torque at most 2, speed at most 8. The
reward is minus (angle² + speed² / 10 + torque² / 1000), with the angle in [-pi, pi).
"""

import math

import jax
import jax.numpy as jnp

GRAVITY, MASS, LENGTH, SECONDS = 10.0, 1.0, 1.0, 0.05
TORQUE, SPEED, STEPS = 2.0, 8.0, 200
INPUTS = 3  # Of the networks: what `observed` returns.


def start(key: jax.Array, count: int) -> jax.Array:
    """Random states ``(count, 2)``: angles in [-pi, pi), speeds in [-1, 1)."""
    ends = jnp.array([math.pi, 1.0])
    return jax.random.uniform(key, (count, 2), minval=-ends, maxval=ends)


def observed(states: jax.Array) -> jax.Array:
    """Cosine and sine of the angle, and an eighth of the speed."""
    angle, speed = states[..., 0], states[..., 1]
    return jnp.stack([jnp.cos(angle), jnp.sin(angle), speed / SPEED], -1)


def moved(states: jax.Array, torque: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The states after a step, and its rewards."""
    angle, speed = states[..., 0], states[..., 1]
    torque = jnp.clip(torque, -TORQUE, TORQUE)
    near = (angle + math.pi) % (2 * math.pi) - math.pi
    reward = -(near**2 + 0.1 * speed**2 + 0.001 * torque**2)
    fall = 3 * GRAVITY / (2 * LENGTH) * jnp.sin(angle)
    speed = speed + (fall + 3 / (MASS * LENGTH**2) * torque) * SECONDS
    speed = jnp.clip(speed, -SPEED, SPEED)
    return jnp.stack([angle + speed * SECONDS, speed], -1), reward
