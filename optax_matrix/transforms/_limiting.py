"""A limiter of how fast the norm of an update may grow (Fira, RACS, Alice)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from optax_matrix.linalg._scale import work_dtype
from optax_matrix.transforms._checks import check_positive
from optax_matrix.transforms._numerics import matrix_norm, safe_divide, widened


class LimitNormGrowthState(NamedTuple):
    """State of `limit_norm_growth`.

    Attributes:
        norm: Per leaf the Frobenius norm of the last update that was not zero, after
            limiting, shape ``(...)``, at least float32; 0 before the first.
    """

    norm: Any


def limit_norm_growth(
    max_growth: ArrayLike = 1.01,
) -> optax.GradientTransformationExtraArgs:
    r"""Lets the norm of each matrix's update grow by at most a factor per step.

    .. math::
        \eta_t = \gamma / \max(\|\Delta_t\| / \phi_{t-1}, \gamma), \qquad
        \phi_t = \eta_t \|\Delta_t\|, \qquad
        \Delta_t \mapsto \eta_t \Delta_t

    with :math:`\gamma` the ``max_growth``, and :math:`\eta_t = 1` while
    :math:`\phi_{t-1} = 0`. Written as :math:`\phi_t = \min(\|\Delta_t\|,
    \gamma\phi_{t-1})`, so that no quotient overflows. An update of zeros passes and
    leaves :math:`\phi` alone: taken literally it would lift the limit from the step
    after it.

    Args:
        max_growth: The largest factor :math:`\gamma` per step, above zero.

    Returns:
        A transformation of trees whose leaves are ``(..., m, n)``.

    Raises:
        ValueError: If ``max_growth`` is not positive.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx = om.limit_norm_growth(1.5)
        >>> w = {"w": jnp.eye(1)}
        >>> _, state = tx.update(w, tx.init(w))
        >>> updates, state = tx.update({"w": 9 * jnp.eye(1)}, state)
        >>> float(updates["w"][0, 0])
        1.5

    References:
        Chen et al., `Fira <https://arxiv.org/abs/2410.01623>`_, 2024; as in RACS,
        Algorithm 1, without Fira's 1e-8 in the denominator.
    """
    check_positive("max_growth", max_growth)

    def init_fn(params):
        def start(p):
            return jnp.zeros(p.shape[:-2], work_dtype(p.dtype))

        return LimitNormGrowthState(jax.tree.map(start, params))

    def update_fn(updates, state, params=None, **extra_args):
        del params, extra_args

        def limited(x, last):
            norm = matrix_norm(x)[..., 0, 0]
            bound = jnp.where(last > 0, (max_growth * last).astype(norm.dtype), norm)
            return norm, jnp.minimum(norm, bound)

        def rescale(x, last):
            norm, size = (v[..., None, None] for v in limited(x, last))
            shrunk = safe_divide(widened(x), norm) * size
            return jnp.where(size < norm, shrunk, widened(x)).astype(x.dtype)

        def remember(x, last):
            norm, size = limited(x, last)
            return jnp.where(norm > 0, size, last)

        new_state = LimitNormGrowthState(jax.tree.map(remember, updates, state.norm))
        return jax.tree.map(rescale, updates, state.norm), new_state

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)
