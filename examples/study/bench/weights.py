"""Forms of the weights: float32, and four ways to keep and update them in bfloat16.

Only the weights differ. In every form the model computes in float32 with the weights as
they are, gradients and the optimizer's state are float32, and vectors (norms) stay
float32: what a form loses, the rounding of weights has cost.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

import optax_matrix as om


def rounded(inner: optax.GradientTransformation) -> optax.GradientTransformation:
    """Bfloat16 weights under an optimizer in float32; `apply_updates` rounds them."""

    def update(updates, state, params=None):
        return inner.update(updates, state, wide(params))

    return optax.GradientTransformation(lambda params: inner.init(wide(params)), update)


FORMS: Mapping[str, Callable[[Any], Any]] = {
    "float32": lambda tx: tx,
    "rounded": rounded,
    "stochastic_rounding": om.weights.stochastic_rounding,
    "store_remainders": om.weights.store_remainders,
    "store_remainders:int8": partial(om.weights.store_remainders, dtype="int8"),
}


def kept(params: Any, form: str) -> Any:
    """Weights as they are kept in a form: all but vectors in bfloat16, or none."""
    if form == "float32":
        return params
    half = lambda w: w.astype(jnp.bfloat16) if w.ndim > 1 else w
    return jax.tree.map(half, params)


def wide(params: Any) -> Any:
    """The weights with which the model computes."""
    is_half = lambda w: w.dtype == jnp.bfloat16
    return jax.tree.map(lambda w: w.astype(jnp.float32) if is_half(w) else w, params)
