"""GRPO: the base learns sums from rewards of whole answers, in groups per question."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from examples.study.reinforce import base, sums
from examples.study.reinforce.formulas import (
    clipped,
    divergence,
    entropy,
    group_advantages,
)

GROUP, PROMPTS, INNER, CLIP, TO_BASE = 8, 16, 2, 0.2, 0.01
STEPS, POINTS = 150, 15  # Sets of answers, and points of a curve after the first.
UPDATES = STEPS * INNER


def sample(
    params: Any, prompts: jax.Array, key: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Draws an answer to each question.

    Returns:
        The answers ``(rows, ANSWER)``, and the log probability of each byte.
    """
    rows, logs = prompts, []
    for one in jax.random.split(key, sums.ANSWER):
        logits = base.next_logits(params, rows)[:, -1:]
        drawn = jax.random.categorical(one, logits).astype(rows.dtype)
        logs.append(log_probabilities(logits, drawn))
        rows = jnp.concatenate([rows, drawn], 1)
    return rows[:, sums.PROMPT :], jnp.concatenate(logs, 1)


def log_probabilities(logits: jax.Array, answers: jax.Array) -> jax.Array:
    """Log probability of each byte of answers."""
    logs = jax.nn.log_softmax(logits)
    return jnp.take_along_axis(logs, answers[..., None], -1)[..., 0]


def mean_over(counted: jax.Array, values: jax.Array) -> jax.Array:
    """Mean over the bytes that count."""
    return jnp.where(counted, values, 0).sum() / counted.sum()


def loss(params: Any, taken: dict[str, jax.Array]) -> jax.Array:
    """The negative objective of GRPO, a mean over bytes.

    Args:
        params: Weights.
        taken: ``rows`` (whole lines), and per byte of the answers ``before`` (log
            probabilities when they were drawn), ``advantages`` and ``base`` (logits).
    """
    answers = taken["rows"][:, sums.PROMPT :]
    logits = base.logits_of(params, taken["rows"])
    log_ratio = log_probabilities(logits, answers) - taken["before"]
    gain = clipped(log_ratio, taken["advantages"], CLIP)
    away = divergence(logits, taken["base"])
    return -mean_over(sums.counted(answers), gain - TO_BASE * away)


def collected(params: Any, first: Any, key: jax.Array) -> dict[str, jax.Array]:
    """Answers to some questions, a group each, with what `loss` needs of them."""
    choice, drawing = jax.random.split(key)
    every = jnp.arange(len(sums.QUESTIONS))[sums.ASKED]
    which = jax.random.choice(choice, every, (PROMPTS,), replace=False)
    which = jnp.repeat(which, GROUP)
    prompts, right = jnp.asarray(sums.PROMPTS)[which], jnp.asarray(sums.ANSWERS)[which]
    answers, before = sample(params, prompts, drawing)
    rows = jnp.concatenate([prompts, answers], 1)
    rewards = sums.rewards(answers, right).reshape(PROMPTS, GROUP)
    advantages = group_advantages(rewards).reshape(-1, 1)
    return {
        "rows": rows,
        "before": before,
        "advantages": jnp.broadcast_to(advantages, answers.shape),
        "base": base.logits_of(first, rows),
    }


def measure(params: Any, first: Any, key: jax.Array) -> dict[str, jax.Array]:
    """The probability of a right answer, exactly; entropy and divergence per byte.

    All are means over the questions that are held out.
    """
    prompts = jnp.asarray(sums.PROMPTS[sums.OTHERS])
    right = jnp.asarray(sums.ANSWERS[sums.OTHERS])
    lines = jnp.concatenate([prompts, right], 1)
    logs = log_probabilities(base.logits_of(params, lines), right)
    expected = jnp.exp(jnp.where(sums.counted(right), logs, 0).sum(-1)).mean()
    answers, _ = sample(params, prompts, key)
    rows = jnp.concatenate([prompts, answers], 1)
    logits, counted = base.logits_of(params, rows), sums.counted(answers)
    away = divergence(logits, base.logits_of(first, rows))
    return {
        "score": expected,
        "entropy": mean_over(counted, entropy(logits)),
        "divergence": mean_over(counted, away),
    }


def train(
    tx: optax.GradientTransformation, first: Any, seed: Any
) -> dict[str, jax.Array]:
    """Trains the base; returns `measure` at `POINTS` + 1 times, the first one before.

    Args:
        tx: The optimizer, which makes `UPDATES` updates.
        first: Weights of the base.
        seed: Of questions and answers.
    """

    def update(carry, taken):
        params, state = carry
        updates, state = tx.update(jax.grad(loss)(params, taken), state, params)
        return optax.apply_updates(params, updates), state

    def step(carry, key):
        taken = collected(carry[0], first, key)
        again = lambda _, carry: update(carry, taken)
        return jax.lax.fori_loop(0, INNER, again, carry), None

    def block(carry, keys):
        carry = jax.lax.scan(step, carry, keys[1:])[0]
        return carry, measure(carry[0], first, keys[0])

    start, rest = jax.random.split(jax.random.key(seed))
    keys = jax.random.split(rest, (POINTS, 1 + STEPS // POINTS))
    before = measure(first, first, start)
    _, after = jax.lax.scan(block, (first, tx.init(first)), keys)
    return jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), before, after)


def steps() -> np.ndarray:
    """The steps that `train` measures."""
    return np.arange(POINTS + 1) * (STEPS // POINTS)
