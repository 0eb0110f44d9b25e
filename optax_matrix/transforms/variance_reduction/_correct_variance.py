"""The variance-reduced gradient of MARS."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from optax_matrix._arguments import Bound, Decay, Dtype, NotNegative, checked
from optax_matrix.linalg.scale import matrix_norm, safe_divide, widened
from optax_matrix.transforms.arguments import zeros_of_state


class CorrectVarianceState(NamedTuple):
    """State of `correct_variance`.

    Attributes:
        last: Per leaf the previous gradient, shape ``(..., m, n)``, in
            ``accumulator_dtype`` or the parameter's dtype; zeros before the first.
    """

    last: Any


@checked
def correct_variance(
    gamma: NotNegative = 0.025,
    b1: Decay = 0.95,
    max_norm: Bound | None = 1.0,
    *,
    accumulator_dtype: Dtype | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Adds a multiple of the change in the gradient, and clips each matrix's norm.

    .. math::
        c_t = G_t + \gamma \frac{\beta_1}{1 - \beta_1} (G_t - G_{t-1}), \qquad
        \tilde{c}_t = c_t / \max(1, \|c_t\|_F / \tau)

    where :math:`\gamma` is ``gamma``, :math:`\beta_1` is ``b1`` and :math:`\tau` is
    ``max_norm``. Before the first step :math:`G_0 = 0`, so the first gradient is
    multiplied by :math:`1 + \gamma\beta_1/(1-\beta_1)`, as in the authors' code.

    Args:
        gamma: Strength of the correction, not negative.
        b1: Decay rate of the momentum that follows, in ``[0, 1)``.
        max_norm: Largest Frobenius norm of a matrix; None for no clipping.
        accumulator_dtype: Dtype of the stored gradient; None for the parameter's.

    Returns:
        A transformation of trees whose leaves are ``(..., m, n)``.

    Raises:
        ValueError: If ``gamma`` is negative, ``b1`` is not in [0, 1), ``max_norm`` is
            not positive, or the dtype is not floating.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx = om.transforms.correct_variance(0.5, 0.5, max_norm=None)
        >>> w = {"w": jnp.eye(1)}
        >>> updates, state = tx.update(w, tx.init(w))
        >>> float(updates["w"][0, 0])
        1.5

    References:
        Yuan et al., `MARS <https://arxiv.org/abs/2411.10438>`_, 2024, in the one-batch
        form of the authors' code: the last gradient is that of the last batch.
    """

    def init_fn(params):
        return CorrectVarianceState(zeros_of_state(params, accumulator_dtype))

    def update_fn(updates, state, params=None, **extra_args):
        del params, extra_args
        weight = gamma * b1 / (1 - b1)

        def correct(x, last):
            wide = widened(x)
            c = wide + weight * (wide - last.astype(wide.dtype))
            if max_norm is not None:
                norm = matrix_norm(c)
                c = jnp.where(norm > max_norm, safe_divide(c, norm) * max_norm, c)
            return c.astype(x.dtype)

        corrected = jax.tree.map(correct, updates, state.last)
        last = jax.tree.map(lambda x, old: x.astype(old.dtype), updates, state.last)
        return corrected, CorrectVarianceState(last)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)
