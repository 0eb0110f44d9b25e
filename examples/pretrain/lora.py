"""LoRA in the comparison, as an optimizer of the weights: ``lora:rank=8``."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import optax_matrix as om


class LoraState(NamedTuple):
    """Factors of the change so far, by name and stack, and their optimizer's state."""

    factors: dict[str, dict[str, jax.Array]]
    inner_state: Any


def lora(
    learning_rate: optax.ScalarOrSchedule, *, other: Callable[..., Any], rank: int = 16
) -> optax.GradientTransformation:
    """W = W_0 + B A with Adam on B and A; the weights stay plain weights.

    Args:
        learning_rate: Learning rate of all leaves, a number or a schedule.
        other: Learning rate to the optimizer of embeddings, head and norms.
        rank: Columns of B.

    Returns:
        An optimizer of the whole tree.
    """
    if not isinstance(rank, int) or rank < 1:
        raise ValueError(f"`rank` must be a positive int, got {rank!r}.")
    build = jax.tree_util.Partial(_factors, lr=learning_rate, rank=rank)
    parts = {"matrix": om.on_matrices(build), "other": other(learning_rate)}
    return optax.partition(parts, om.matrices.label_params())


def _factors(layout, lr, rank):
    adam = optax.scale_by_adam(0.9, 0.95)
    inner = optax.chain(adam, optax.scale_by_learning_rate(lr))

    def draw(name, w):
        def one(numbers):
            key = jax.random.fold_in(jax.random.key(0), numbers[0])
            shape = rank, w.shape[-1]
            return jax.random.normal(jax.random.fold_in(key, numbers[1]), shape)

        return jax.vmap(one)(jnp.asarray(layout.groups[name].ids)) / w.shape[-1] ** 0.5

    def init_fn(params):
        a = {name: draw(name, w) for name, w in params.items()}
        b = {name: jnp.zeros((*w.shape[:-1], rank)) for name, w in params.items()}
        factors = {"a": a, "b": b}
        return LoraState(factors, inner.init(factors))

    def update_fn(updates, state, params=None):
        del params
        a, b = state.factors["a"], state.factors["b"]
        gradient = {
            "a": {name: b[name].mT @ g for name, g in updates.items()},
            "b": {name: g @ a[name].mT for name, g in updates.items()},
        }
        steps, inner_state = inner.update(gradient, state.inner_state, state.factors)
        new = optax.apply_updates(state.factors, steps)
        change = {n: new["b"][n] @ new["a"][n] - b[n] @ a[n] for n in updates}
        return change, LoraState(new, inner_state)

    return optax.GradientTransformation(init_fn, update_fn)
