"""Limiting how fast the norm of an update may grow (Fira, RACS, Alice)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from optax_matrix._arguments import AtLeastOne, checked
from optax_matrix._surroundings.observation import is_observed, report
from optax_matrix.linalg.scale import matrix_norm, safe_divide
from optax_matrix.transforms.connectives import WithStateState, with_state


class LimitNormGrowthState(NamedTuple):
    r"""State of `limit_norm_growth`.

    Attributes:
        norm: Per leaf the remembered norm :math:`\phi`, shape ``(..., 1, 1)``, at least
            float32; 0 before the first nonzero update.
    """

    norm: Any


@checked
def limit_norm_growth(
    max_growth: AtLeastOne = 1.01, *, max_shrink: AtLeastOne | None = 2.0
) -> optax.GradientTransformationExtraArgs:
    r"""Lets the norm of each matrix's update grow by at most a factor per step.

    .. math::
        \eta_t = \gamma / \max(\|\Delta_t\| / \phi_{t-1}, \gamma), \qquad
        \Delta_t \mapsto \eta_t \Delta_t, \qquad
        \phi_t = \max(\eta_t \|\Delta_t\|, \phi_{t-1} / \sigma)

    where :math:`\gamma` is ``max_growth`` and :math:`\sigma` is ``max_shrink``, and
    :math:`\eta_t = 1` while :math:`\phi_{t-1} = 0`. The norm after limiting is computed
    as :math:`\min(\|\Delta_t\|, \gamma\phi_{t-1})`, so that no quotient overflows. An
    update of zeros passes through and does not change :math:`\phi`. Taken literally,
    the formula would set :math:`\phi` to zero and so lift the limit from the next step.

    Args:
        max_growth: Largest factor :math:`\gamma` of growth per step, at least one.
        max_shrink: Largest factor :math:`\sigma` by which the remembered norm falls per
            step, at least one; None for no bound, as in the papers. The update itself
            may be arbitrarily small.

    Returns:
        A transformation of trees whose leaves are ``(..., m, n)``. Its state is one
        number for each matrix, the remembered norm :math:`\phi`.

    Raises:
        ValueError: If ``max_growth`` or ``max_shrink`` is below one.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx = om.transforms.limit_norm_growth(1.5)
        >>> w = {"w": jnp.eye(1)}
        >>> _, state = tx.update(w, tx.init(w))
        >>> updates, state = tx.update({"w": 9 * jnp.eye(1)}, state)
        >>> float(updates["w"][0, 0])
        1.5

    References:
        Chen et al., `Fira <https://arxiv.org/abs/2410.01623>`_, 2024; as in RACS,
        Algorithm 1, without Fira's 1e-8 in the denominator. Deviation: ``max_shrink``.
        Without it a single tiny gradient can ruin a run: after an update with a
        thousandth of the usual norm, growth by 1.01 takes 700 steps to recover, and
        after one of 1e-20 it takes 4600; with it 70. RACS's own first updates, of sizes
        10, 5.3, 3.7, ..., shrink by factors of at most 1.9 and are not affected.
    """

    def step(x, last, *_):
        norm = matrix_norm(x)
        size, kept = limited_norm(norm, last, max_growth, max_shrink)
        return jnp.where(size < norm, safe_divide(x, norm) * size, x), kept

    limiter = with_state(step)

    def update_fn(updates, state, params=None, **extra_args):
        del params, extra_args
        held: Any
        new, held = limiter.update(updates, WithStateState(state.norm))
        if is_observed():
            norm = lambda x: matrix_norm(x)[..., 0, 0]
            is_limited = lambda x, old: (norm(x) < norm(old)).astype(jnp.float32)
            report("limited", jax.tree.map(is_limited, new, updates))
        return new, LimitNormGrowthState(held.held)

    def init_fn(params):
        held: Any = limiter.init(params)
        return LimitNormGrowthState(held.held)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def limited_norm(norm, last, max_growth, max_shrink):
    """The norm of an update after limiting, and the one to remember."""
    bound = jnp.where(last > 0, (max_growth * last).astype(norm.dtype), norm)
    size = kept = jnp.minimum(norm, bound)
    if max_shrink is not None:
        kept = jnp.maximum(size, (last / max_shrink).astype(size.dtype))
    return size, jnp.where(norm > 0, kept, last)
