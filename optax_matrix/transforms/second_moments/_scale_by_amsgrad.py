"""AMSGrad as in PyTorch."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from optax_matrix._arguments import Decay, Dtype, NotNegative, checked
from optax_matrix.linalg.scale import safe_divide, widened
from optax_matrix.transforms.arguments import zeros_of_state


class ScaleByAmsgradState(NamedTuple):
    """State of `scale_by_amsgrad`.

    Attributes:
        count: Number of updates.
        mu: Per leaf the average of the updates.
        root: Per leaf the root of the average of their squares, at least float32.
        largest: Per leaf the largest ``root`` so far.
    """

    count: Any
    mu: Any
    root: Any
    largest: Any


@checked
def scale_by_amsgrad(
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: NotNegative = 1e-8,
    *,
    mu_dtype: Dtype | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Adam, divided by the largest second moment so far.

    .. math::
        M_t = \beta_1 M_{t-1} + (1 - \beta_1) G_t, \quad
        V_t = \beta_2 V_{t-1} + (1 - \beta_2) G_t^2, \quad
        \Delta_t = \frac{M_t / (1 - \beta_1^t)}
            {\sqrt{\max_{s \le t} V_s / (1 - \beta_2^t)} + \epsilon}

    `optax.scale_by_amsgrad` corrects :math:`V_t` before it takes the maximum, so that
    the first gradient counts in full for ever.

    Args:
        b1: Decay rate :math:`\beta_1`.
        b2: Decay rate :math:`\beta_2`.
        eps: Number added to the root.
        mu_dtype: Dtype of the first moment; None for that of the parameter.

    Returns:
        A transformation of any tree.

    Raises:
        ValueError: If an argument is out of range.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx = om.transforms.scale_by_amsgrad(0.0, 0.5)
        >>> _, state = tx.update(jnp.array(4.0), tx.init(jnp.zeros(())))
        >>> update, _ = tx.update(jnp.array(1.0), state)  # 1 / sqrt(8 / 0.75)
        >>> round(float(update), 4)
        0.3062

    References:
        Reddi et al., `On the convergence of Adam and beyond
        <https://arxiv.org/abs/1904.09237>`_, 2018, as PyTorch and the programs based on
        it have it. If ``b1`` or ``b2`` changes between steps, the bias corrections are
        those of their current values.
    """

    def init_fn(params):
        start = lambda p: jnp.zeros_like(widened(p))
        zeros = [jax.tree.map(start, params) for _ in range(2)]
        mu = zeros_of_state(params, mu_dtype)
        return ScaleByAmsgradState(jnp.zeros((), jnp.int32), mu, *zeros)

    def update_fn(updates, state, params=None, **extra_args):
        del params, extra_args
        count: Any = optax.safe_increment(state.count)

        def average(m, g):
            b = jnp.asarray(b1, g.dtype)
            return b * m.astype(g.dtype) + (1 - b) * g

        def root_mean(r, g):
            b = jnp.asarray(b2, g.dtype)
            return jnp.hypot(jnp.sqrt(b) * r, jnp.sqrt(1 - b) * g)

        def divided(m, r):
            weight = lambda b: 1 - jnp.asarray(b, m.dtype) ** count.astype(m.dtype)
            size = r / jnp.sqrt(weight(b2)) + jnp.asarray(eps, m.dtype)
            return safe_divide(m / weight(b1), size)

        like = lambda x, old: x.astype(old.dtype)
        wide = jax.tree.map(widened, updates)
        mu = jax.tree.map(average, state.mu, wide)
        root = jax.tree.map(root_mean, state.root, wide)
        largest = jax.tree.map(jnp.maximum, state.largest, root)
        out = jax.tree.map(like, jax.tree.map(divided, mu, largest), updates)
        mu = jax.tree.map(like, mu, state.mu)
        return out, ScaleByAmsgradState(count, mu, root, largest)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)
