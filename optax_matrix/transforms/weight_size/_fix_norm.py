"""Steps on the sphere of the matrices that have the norm of the initial weights."""

from typing import Any, NamedTuple

import jax
import optax

from optax_matrix._arguments import Rate, checked
from optax_matrix.linalg.scale import matrix_norm, safe_divide, widened


class FixNormState(NamedTuple):
    """State of `fix_norm`.

    Attributes:
        radius: Per leaf the norms of the weights at `init`, ``(...)``, at least
            float32.
        rate: The state of the learning rate: a count, if it is a schedule.
    """

    radius: Any
    rate: Any


@checked
def fix_norm(learning_rate: Rate) -> optax.GradientTransformationExtraArgs:
    r"""Takes a step of a given relative length that keeps the norm of each matrix.

    .. math::
        W_{t+1} = R \, N(W_t + \eta R \, N(\Delta_t)), \qquad N(X) = X / \|X\|_F,
        \quad R = \|W_0\|_F

    Only the direction of the update counts: it is that of a descent, as finished steps
    of an optimizer are. An update of zeros leaves the weights where they are, and so do
    weights of zeros, whose norm is fixed, too. Weights that were changed from outside
    come back to the norm R at the next step.

    Args:
        learning_rate: The length :math:`\eta` of a step relative to the weights, a
            number or a schedule.

    Returns:
        A transformation of trees whose leaves are ``(..., m, n)``. It needs parameters
        (``on_matrices(..., needs_params=True)``), and its updates are finished steps,
        after which nothing may rescale.

    Raises:
        ValueError: If ``learning_rate`` is negative.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx, w = om.transforms.fix_norm(0.75), {"w": jnp.array([[2.0, 0.0]])}
        >>> steps, _ = tx.update({"w": jnp.array([[0.0, 9.0]])}, tx.init(w), w)
        >>> (w["w"] + steps["w"]).round(3).tolist()
        [[1.6..., 1.2...]]

    References:
        Wen et al., `Hyperball <https://arxiv.org/abs/2606.16899>`_, 2026, in the form
        of the authors' `report
        <https://whenwen.github.io/blog/2025/weight-decay-hyperball-part-1/>`_ of 2025.
    """
    rate = optax.scale_by_learning_rate(learning_rate, flip_sign=False)

    def init_fn(params):
        norms = jax.tree.map(lambda w: matrix_norm(w)[..., 0, 0], params)
        return FixNormState(norms, rate.init(params))

    def update_fn(updates, state, params=None, **extra_args):
        del extra_args
        if params is None:
            raise ValueError(
                "`params` must be passed to `update`: the norm of the weights is fixed;"
                " call tx.update(updates, state, params)."
            )
        of_norm = lambda x, r: safe_divide(widened(x), matrix_norm(x)) * r
        sized = lambda x, r: of_norm(x, r[..., None, None])
        directions = jax.tree.map(sized, updates, state.radius)
        steps, new_rate = rate.update(directions, state.rate)

        def finished(step, w, r):
            return (sized(widened(w) + step, r) - widened(w)).astype(w.dtype)

        steps = jax.tree.map(finished, steps, params, state.radius)
        return steps, FixNormState(state.radius, new_rate)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)
