"""Any optimizer, with matrices that keep the norm of their initialization."""

from typing import Any

import jax
import optax

from optax_matrix._arguments import Rate, checked
from optax_matrix.transforms import finish_step
from optax_matrix.transforms.arguments import Transformation
from optax_matrix.tree import on_matrices


@checked
def hyperball(
    inner: Transformation, learning_rate: Rate, *, dimension_numbers: Any = None
) -> optax.GradientTransformationExtraArgs:
    r"""Hyperball: an optimizer whose weights and updates have fixed Frobenius norms.

    .. math::
        W_{t+1} = R \, N(W_t + \eta R \, N(\Delta_t)), \qquad N(X) = X / \|X\|_F,
        \quad R = \|W_0\|_F

    for every matrix, where :math:`\Delta` is the update of ``inner``. So each step
    rotates the weights by an angle of at most about :math:`\eta`. This replaces weight
    decay: set that of ``inner`` to zero. Other leaves get the updates of ``inner``
    unchanged, so its learning rate is the rate of the other leaves. Matrices do not
    depend on it unless it is zero. Matrices that are zero at the start stay zero;
    `init` warns of them.

    Args:
        inner: A recipe, or any optimizer of the whole tree. `poet` and `oft` do not
            need this, because rotations keep norms. The length of a step does not
            depend on the size of its updates, so ``zero_gradient="fade"`` has no
            effect; ``"skip"`` stops matrices without gradient.
        learning_rate: The relative length :math:`\eta` of a step, a number or a
            schedule. For Adam, the authors' code has the root of learning rate times
            weight decay in place of both.
        dimension_numbers: Which leaves are matrices; pass those of ``inner``. Each
            layer, expert and section has its own norm; the heads of a kernel share one.

    Returns:
        An optimizer of the whole tree. It needs `params`, and it must be the last of a
        chain. Its state adds one number per matrix.

    Raises:
        ValueError: If ``inner`` is not a transformation or ``learning_rate`` is
            negative; at `init`, if ``inner`` is `optax.contrib.schedule_free`.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax, optax_matrix as om
        >>> tx = om.weights.hyperball(om.muon(0.02), learning_rate=0.01)
        >>> params = {"kernel": jnp.eye(4, 8), "bias": jnp.zeros(8)}
        >>> grads = {"kernel": jnp.ones((4, 8)), "bias": jnp.ones(8)}
        >>> updates, state = tx.update(grads, tx.init(params), params)
        >>> new = optax.apply_updates(params, updates)["kernel"]
        >>> jnp.linalg.norm(new).round(4)
        Array(2., dtype=float32)

    References:
        As in `transforms.finish_step`. The authors leave embeddings, heads and vectors
        to Adam; so does a recipe as ``inner``.
    """
    build: Any = finish_step("hyperball", learning_rate)
    if isinstance(learning_rate, jax.Array):  # It must reach the step as an argument.
        build = jax.tree_util.Partial(_on_sphere, rate=learning_rate)
    step = on_matrices(
        build,
        name="hyperball",
        dimension_numbers=dimension_numbers,
        needs_params=True,
        moves_zeros=False,
        probe=False,
    )
    tx = optax.chain(inner, step)

    def init_fn(params):
        state = tx.init(params)
        if optax.tree.get_all_with_path(state, "ScheduleFreeState"):
            raise ValueError(
                "`inner` must not be optax.contrib.schedule_free, whose averages have "
                "no fixed norm; put om.average_weights around om.weights.hyperball."
            )
        return state

    return optax.GradientTransformationExtraArgs(init_fn, tx.update)


def _on_sphere(layout: Any, rate: Any) -> optax.GradientTransformation:
    del layout
    return finish_step("hyperball", rate)
