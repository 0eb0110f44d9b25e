"""Momentum as an average of the gradients."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from optax_matrix._arguments import Decay, Dtype, checked
from optax_matrix._surroundings.keeping import kept
from optax_matrix._surroundings.observation import report
from optax_matrix.linalg.scale import check_matrices
from optax_matrix.transforms.arguments import zeros_of_state


class MomentumState(NamedTuple):
    """State of `momentum`.

    Attributes:
        mu: Per leaf the average of the gradients.
        weight: Per leaf and matrix the sum of the weights in that average, shape
            ``(...)``; None without bias correction.
    """

    mu: Any
    weight: Any


@checked
def momentum(
    decay: Decay = 0.95,
    *,
    nesterov: bool = False,
    bias_correction: bool = False,
    dtype: Dtype | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Averages gradients.

    .. math::
        M_t = \beta_t M_{t-1} + (1 - \beta_t) G_t

    The update is :math:`M_t`, or with Nesterov's look-ahead
    :math:`\beta_t M_t + (1 - \beta_t) G_t`. It is computed in at least float32, and
    only the state is rounded to its dtype. As an average, the momentum is never larger
    than the largest gradient, so it does not overflow.

    `optax.ema` and `optax.trace` are the same for a constant :math:`\beta`, apart from
    the factor :math:`1 - \beta` of a trace, if all is float32. They differ in half
    precision, which they compute in. If :math:`\beta` changes between steps, a trace is
    no average of the gradients, and the bias correction of `optax.ema` is wrong.

    Args:
        decay: Decay rate :math:`\beta`, in ``[0, 1)``.
        nesterov: Whether to look one step ahead.
        bias_correction: Whether to divide the average by the sum of its weights,
            :math:`w_t = \beta_t w_{t-1} + 1 - \beta_t`, before the look-ahead.
        dtype: Dtype of the state; None for that of the parameters.

    Returns:
        A transformation of trees whose leaves are ``(..., m, n)``. Updates are at least
        float32.

    Raises:
        ValueError: If an argument is out of range.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx = om.momentum(0.75)
        >>> w = {"w": jnp.array([[4.0, -8.0]])}
        >>> tx.update(w, tx.init(w))[0]["w"].tolist()
        [[1.0, -2.0]]

    References:
        MuonEq, Algorithm 1, and ARO, Section 2, which have an average with
        :math:`\beta_t`. Deviation: the look-ahead of MuonEq has
        :math:`\beta_{t+1}`, which is not known at step t; here it is
        :math:`\beta_t`.
    """

    def init_fn(params):
        mu = zeros_of_state(params, dtype)
        wide = lambda p: np.promote_types(p.dtype, np.float32)
        weight = None
        if bias_correction:
            jax.tree.map(check_matrices, params)
            zeros = lambda p: jnp.zeros(p.shape[:-2], wide(p))
            weight = jax.tree.map(zeros, params)
        return MomentumState(mu, weight)

    def update_fn(updates, state, params=None, **extra_args):
        del params, extra_args
        # What follows reads the average that is stored: one array, not two.
        mu = ahead = kept(jax.tree.map(mixed, state.mu, updates), state.mu)
        weight = state.weight
        if weight is not None:
            weight = jax.tree.map(lambda w: mixed(w, jnp.ones_like(w)), weight)
            ahead = jax.tree.map(lambda m, w: m / w[..., None, None], mu, weight)
        if nesterov:
            ahead = jax.tree.map(mixed, ahead, updates)
        report("momentum", ahead)
        mu = jax.tree.map(lambda new, old: new.astype(old.dtype), mu, state.mu)
        return ahead, MomentumState(mu, weight)

    def mixed(old, new):
        wide = functools.reduce(np.promote_types, (np.float32, old.dtype, new.dtype))
        b = jnp.asarray(decay, wide)
        return b * old.astype(wide) + (1 - b) * new.astype(wide)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)
