"""Adam whose bias correction counts the updates of each matrix."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from optax_matrix._arguments import Decay, Dtype, NotNegative, checked
from optax_matrix.linalg.scale import check_matrices, safe_divide, widened
from optax_matrix.transforms.arguments import zeros_of_state


class ScaleByAdamPerMatrixState(NamedTuple):
    """State of `scale_by_adam_per_matrix`.

    Attributes:
        mu: Per leaf the average of its gradients.
        nu: Per leaf the average of their squares, at least float32.
        mu_weight: Per leaf the sum of the weights in ``mu``, which is ``1 - b1**t`` t
            updates after a reset, shape ``(..., 1, 1)``.
        nu_weight: The same for ``nu``.
    """

    mu: Any
    nu: Any
    mu_weight: Any
    nu_weight: Any


@checked
def scale_by_adam_per_matrix(
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: NotNegative = 1e-8,
    *,
    mu_dtype: Dtype | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Adam's direction; each matrix corrects the bias by its own number of updates.

    .. math::
        \Delta_t = \frac{m_t / (1 - \beta_1^t)}{\sqrt{v_t / (1 - \beta_2^t)} + \epsilon}

    `optax.scale_by_adam` has one count t for all matrices. Here each matrix has its
    own, which `spo` and `reparameterize` reset with its moments when they merge it.
    Schedules of ``b1`` and ``b2`` are followed exactly: moments are divided by the sums
    of their weights. Unlike `momentum` with `scale_by_second_moment`, epsilon is added
    after the correction, and the result has no bound.

    Args:
        b1: Decay rate :math:`\beta_1` of the first moment.
        b2: Decay rate :math:`\beta_2` of the second moment.
        eps: Added to the root of the second moment.
        mu_dtype: Dtype of the first moment; None for that of the parameter.

    Returns:
        A transformation of trees whose leaves are ``(..., k, t)``: for each matrix the
        triangles of k blocks.

    Raises:
        ValueError: If an argument is out of range.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx = om.transforms.scale_by_adam_per_matrix()
        >>> q = {"w": jnp.array([[[0.5, -2.0]]])}
        >>> tx.update(q, tx.init(q))[0]["w"].round(3).tolist()
        [[[1.0, -1.0]]]

    References:
        Kingma and Ba, `Adam <https://arxiv.org/abs/1412.6980>`_, 2014.
    """

    def init_fn(params):
        jax.tree.map(check_matrices, params)
        mu = zeros_of_state(params, mu_dtype)
        nu = jax.tree.map(lambda p: jnp.zeros_like(widened(p)), params)
        # Each array is a new one: a state with shared arrays cannot be donated.
        start = lambda p: jnp.zeros((*p.shape[:-2], 1, 1), p.dtype)
        weights = (jax.tree.map(start, nu) for _ in range(2))
        return ScaleByAdamPerMatrixState(mu, nu, *weights)

    def update_fn(updates, state, params=None, **extra_args):
        del params, extra_args

        def mixed(decay, x, old):
            b = jnp.asarray(decay, x.dtype)
            return b * old.astype(x.dtype) + (1 - b) * x

        mix = lambda decay, xs, old: jax.tree.map(
            lambda x, o: mixed(decay, x, o), xs, old
        )
        wide = jax.tree.map(widened, updates)
        mu = mix(b1, wide, state.mu)
        nu = mix(b2, jax.tree.map(jnp.square, wide), state.nu)
        ones = jax.tree.map(jnp.ones_like, state.nu_weight)
        weights = mix(b1, ones, state.mu_weight), mix(b2, ones, state.nu_weight)

        def direction(m, v, m_weight, v_weight):
            return safe_divide(m / m_weight, jnp.sqrt(v / v_weight) + eps)

        like = lambda x, old: x.astype(old.dtype)
        out = jax.tree.map(direction, mu, nu, *weights)
        stored = jax.tree.map(like, mu, state.mu)
        new = ScaleByAdamPerMatrixState(stored, nu, *weights)
        return jax.tree.map(like, out, updates), new

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)
