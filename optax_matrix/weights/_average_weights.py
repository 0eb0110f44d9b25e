"""An exponential moving average of the weights, in the state of any optimizer."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from optax_matrix._arguments import Decay, checked
from optax_matrix.linalg.scale import widened
from optax_matrix.transforms.arguments import Transformation
from optax_matrix.weights._round import require_params


class AverageWeightsState(NamedTuple):
    """State of `average_weights`.

    Attributes:
        total: Sum of the powers of the decay rate up to this step, a scalar.
        average: Average of the weights, of their shapes, at least float32.
        inner_state: State of the inner optimizer.
    """

    total: Any
    average: Any
    inner_state: Any


@checked
def average_weights(
    inner: Transformation, decay: Decay = 0.999
) -> optax.GradientTransformationExtraArgs:
    r"""Keeps an exponential moving average of the weights in the optimizer's state.

    .. math::
        \bar W_t = \bar W_{t-1} + (W_t - \bar W_{t-1}) / s_t, \qquad
        s_t = 1 + \beta s_{t-1}, \qquad s_0 = 0

    This is the average with Adam's bias correction: step i has the weight
    :math:`\beta^{t-i}`, and the initialization has none. Training does not change.
    `evaluation_params` returns the average.

    Args:
        inner: The optimizer of the whole tree, with its learning rate. `optax.ema` in
            its place averages updates, not weights.
        decay: The decay rate :math:`\beta`.

    Returns:
        A transformation, the last one of a chain. Put it inside of `optax.MultiSteps`,
        so that it counts steps, and inside of `store_remainders`, so that it averages
        all bits of the weights. The state has one copy of them, at least float32.

    Raises:
        ValueError: If an argument is out of range; at `update`, without ``params``.

    Examples:
        >>> import jax.numpy as jnp, optax
        >>> import optax_matrix as om
        >>> tx = om.average_weights(optax.sgd(1.0), decay=0.5)
        >>> params, state = {"w": jnp.zeros(1)}, tx.init({"w": jnp.zeros(1)})
        >>> for _ in range(2):  # To -1, and to -2.
        ...     updates, state = tx.update({"w": jnp.ones(1)}, state, params)
        ...     params = optax.apply_updates(params, updates)
        >>> om.evaluation_params(state, params)["w"].round(3)
        Array([-1.667], dtype=float32)

    References:
        Polyak and Juditsky, `Acceleration of Stochastic Approximation by Averaging
        <https://doi.org/10.1137/0330046>`_, 1992, with the exponential weights that are
        usual for networks.
    """
    inner = optax.with_extra_args_support(inner)

    def init_fn(params):
        # A copy, so that both may be donated.
        average = jax.tree.map(lambda w: jnp.copy(widened(w)), params)
        return AverageWeightsState(jnp.zeros((), float), average, inner.init(params))

    def update_fn(updates, state, params=None, **extra_args):
        require_params(params, "averaged")
        updates, inner_state = inner.update(
            updates, state.inner_state, params, **extra_args
        )
        total = 1 + decay * state.total

        def step(update, average, w):
            if update is None:
                return average
            new = (w + update).astype(w.dtype).astype(average.dtype)
            return average + (new - average) / total.astype(average.dtype)

        average = jax.tree.map(
            step, updates, state.average, params, is_leaf=lambda x: x is None
        )
        return updates, AverageWeightsState(total, average, inner_state)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)
