"""The gradient itself, in the sizes that a low-rank update has (APOLLO)."""

from typing import Literal

import jax
import jax.numpy as jnp
import optax

from optax_matrix.arguments import (
    AtLeastOne,
    Positive,
    checked,
)
from optax_matrix.transforms.numerics import column_norms, matrix_norm, safe_divide
from optax_matrix.transforms.update_size import limit_norm_growth

NORMS = {"channel": lambda x: column_norms(x)[..., None, :], "tensor": matrix_norm}


@checked
def scale_gradient(
    per: Literal["channel", "tensor"] = "channel",
    *,
    scale: Positive = 1.0,
    limiter: AtLeastOne | None = 1.01,
    max_shrink: AtLeastOne | None = 2.0,
) -> optax.GradientTransformationExtraArgs:
    r"""Scales the full gradient by how an update in a subspace changed its size.

    .. math::
        \Delta_{\cdot i} = \sqrt{\alpha} \, G_{\cdot i} \,
        \|\omega_{\cdot i}\| / \|\sigma_{\cdot i}\|
        \quad \text{or} \quad
        \Delta = \sqrt{\alpha} \, G \, \|\omega\|_F / \|\sigma\|_F

    then limited by `limit_norm_growth`. Nothing is projected back: the basis need be
    neither orthonormal nor remembered.

    Args:
        per: ``"channel"``, a factor for each column of the side that is not projected;
            ``"tensor"``, one for each matrix.
        scale: The number :math:`\alpha` under the root.
        limiter: Largest growth of the update's norm per step; None for none.
        max_shrink: As in `limit_norm_growth`; None is the paper's.

    Returns:
        A transformation for the ``combine`` of `project_low_rank`: its updates are the
        :math:`\omega`, and it needs ``gradient`` and ``projected`` as extra arguments.
        Its state is one number per matrix, none without a limiter. Where :math:`\sigma`
        is zero, so is the update.

    Raises:
        ValueError: If an argument is out of range.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax
        >>> import optax_matrix as om
        >>> combine = om.transforms.scale_gradient("tensor", scale=4.0)
        >>> tx = om.project_low_rank(optax.scale(0.5), combine=combine, rank=1)
        >>> w = {"w": jnp.array([[3.0, 0.0], [1.0, 2.0]])}
        >>> tx.update(w, tx.init(w))[0]["w"].round(3).tolist()  # sqrt(4) 0.5 G
        [[3.0..., 0.0], [1.0, 2.0]]

    References:
        Zhu et al., `APOLLO <https://arxiv.org/abs/2412.05270>`_, 2024, Algorithm 1;
        the scale as in the authors' code. Deviations: ``max_shrink``; no epsilon beside
        the norms.
    """
    size = NORMS[per]
    limit = optax.identity()
    if limiter is not None:
        limit = limit_norm_growth(limiter, max_shrink=max_shrink)

    def update_fn(
        updates, state, params=None, *, gradient=None, projected=None, **extra_args
    ):
        del params, extra_args

        def scaled(g: jax.Array, sigma: jax.Array, omega: jax.Array) -> jax.Array:
            # In this order, as the quotient of the norms alone may overflow.
            return safe_divide(g, size(sigma)) * size(omega)

        updates = jax.tree.map(scaled, gradient, projected, updates)
        updates, state = limit.update(updates, state)
        root = lambda x: x * jnp.sqrt(jnp.asarray(scale, x.dtype))
        return jax.tree.map(root, updates), state

    return optax.GradientTransformationExtraArgs(limit.init, update_fn)
