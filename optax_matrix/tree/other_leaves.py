"""What `init` says of the optimizer of the other leaves if it would mislead."""

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax


def with_warning(other: Any, text: Callable[[Any], str | None]) -> Any:
    """`other` as `on_matrices` takes it, whose `init` warns if there are such leaves.

    ``text`` is called with them then; it returns what to say, or None.
    """

    def make(params: Any) -> optax.GradientTransformationExtraArgs:
        is_made = isinstance(other, optax.GradientTransformation)
        tx = optax.with_extra_args_support(other if is_made else other(params))

        def init(params: Any) -> Any:
            if jax.tree.leaves(params) and (said := text(params)):
                warnings.warn(said)  # noqa: B028 (shown once)
            return tx.init(params)

        return optax.GradientTransformationExtraArgs(init, tx.update)

    return make


def climbs(tx: optax.GradientTransformation, leaves: Any) -> bool:
    """Whether the first update points along the gradient.

    It is computed for two numbers in place of a leaf: of a single one, or of each one
    where a mask needs the whole tree. False where it cannot be known before the step,
    as with traced rates.
    """
    for tree in ({"bias": 0}, leaves):
        try:
            with jax.ensure_compile_time_eval():
                grads, params = (
                    jax.tree.map(lambda _, x=x: jnp.full(2, x), tree)
                    for x in (1.0, 0.0)
                )
                updates, _ = tx.update(grads, tx.init(params), params)
                along: Any = optax.tree.vdot(updates, grads)
                return bool(along > 0)
        except Exception:  # Of any optimizer's code, of any kind.
            continue
    return False
