"""What `init` says of the optimizer of the other leaves if it would mislead."""

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax


def with_warning(other: Any, text: Callable[[], str | None]) -> Any:
    """`other` as `on_matrices` takes it, whose `init` warns if there are such leaves.

    ``text`` is called then; it returns what to say, or None.
    """

    def make(params: Any) -> optax.GradientTransformationExtraArgs:
        is_made = isinstance(other, optax.GradientTransformation)
        tx = optax.with_extra_args_support(other if is_made else other(params))

        def init(leaves: Any) -> Any:
            if jax.tree.leaves(leaves) and (said := text()):
                warnings.warn(said, stacklevel=2)
            return tx.init(leaves)

        return optax.GradientTransformationExtraArgs(init, tx.update)

    return make


def climbs(tx: optax.GradientTransformation) -> bool:
    """Whether the first update points along the gradient.

    It is computed for two numbers. False where that is not possible: with masks of a
    certain tree, or with traced rates.
    """
    try:
        with jax.ensure_compile_time_eval():
            grads, params = {"bias": jnp.ones(2)}, {"bias": jnp.zeros(2)}
            updates, _ = tx.update(grads, tx.init(params), params)
            return bool(optax.tree.vdot(updates, grads) > 0)
    except Exception:  # Of any optimizer's code, of any kind.
        return False
