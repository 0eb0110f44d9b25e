"""Scaling the full gradient with factors found in a subspace (APOLLO)."""

from typing import Literal

import jax
import jax.numpy as jnp
import optax

from optax_matrix._arguments import AtLeastOne, NotNegative, Positive, checked
from optax_matrix.linalg.scale import column_norms, matrix_norm, safe_divide
from optax_matrix.transforms.update_size import limit_norm_growth

NORMS = {"channel": lambda x: column_norms(x)[..., None, :], "tensor": matrix_norm}


@checked
def scale_gradient(
    per: Literal["channel", "tensor"] = "channel",
    *,
    scale: Positive = 1.0,
    limiter: AtLeastOne | None = 1.01,
    max_shrink: AtLeastOne | None = 2.0,
    min_share: NotNegative = 0.1,
) -> optax.GradientTransformationExtraArgs:
    r"""Scales the full gradient as the inner transformation scaled its projection.

    .. math::
        \Delta_{\cdot i} = \sqrt{\alpha} \, G_{\cdot i} \,
        \|\omega_{\cdot i}\| / \|\sigma_{\cdot i}\|
        \quad \text{or} \quad
        \Delta = \sqrt{\alpha} \, G \, \|\omega\|_F / \|\sigma\|_F

    The norm is limited by `limit_norm_growth` before the factor :math:`\sqrt{\alpha}`,
    so that a change of :math:`\alpha` shows at once and in full. Nothing is projected
    back, so the basis need not be orthonormal or stored. Where :math:`\sigma` is zero,
    the update is zero. The state is one number per matrix, or empty without a limiter.

    Args:
        per: ``"channel"`` for one factor per index of the side that is not projected;
            ``"tensor"`` for one per matrix.
        scale: Number :math:`\alpha`; updates are proportional to its square root.
        limiter: Largest factor by which the norm of the update grows per step; None for
            no limit.
        max_shrink: Largest factor by which the remembered norm falls per step, as in
            `limit_norm_growth`; None for no bound, as in the paper.
        min_share: Smallest norm of :math:`\sigma`, relative to
            :math:`\sqrt{r / m} \, \|G\|`, the share that an orthonormal random basis
            holds (a Gaussian one, ``"gaussian"``, has :math:`\|\sigma\| \approx
            \|G\|`). It bounds the factor for gradients that are nearly orthogonal to
            the basis; 0 for no bound, as in the paper.

    Returns:
        A transformation for the ``combine`` of `project_low_rank`. Its updates are the
        :math:`\omega`, and it needs ``gradient`` and ``projected`` as extra arguments.

    Raises:
        ValueError: If an argument is out of range.

    Examples:
        >>> import jax, jax.numpy as jnp, optax
        >>> import optax_matrix as om
        >>> combine = om.transforms.scale_gradient("tensor", scale=4.0)
        >>> tx = om.project_low_rank(optax.scale(0.5), combine=combine, rank=1)
        >>> w = {"w": jnp.array([[3.0, 0.0], [1.0, 2.0]])}
        >>> jax.jit(tx.update)(w, tx.init(w))[0]["w"].round(3).tolist()  # sqrt(4) 0.5 G
        [[3.0..., 0.0], [1.0, 2.0]]

    References:
        Zhu et al., `APOLLO <https://arxiv.org/abs/2412.05270>`_, 2024, Algorithm 1;
        the scale as in the authors' code. Deviations: ``max_shrink``;
        ``min_share``; no epsilon added to the norms.
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
            share = min_share * (sigma.shape[-2] / g.shape[-2]) ** 0.5
            held = jnp.maximum(size(sigma), share * size(g))
            # In this order, because the quotient of the norms alone may overflow.
            return safe_divide(g, jnp.where(size(sigma) == 0, 0, held)) * size(omega)

        updates = jax.tree.map(scaled, gradient, projected, updates)
        updates, state = limit.update(updates, state)
        root = lambda x: x * jnp.sqrt(jnp.asarray(scale, x.dtype))
        return jax.tree.map(root, updates), state

    return optax.GradientTransformationExtraArgs(limit.init, update_fn)
