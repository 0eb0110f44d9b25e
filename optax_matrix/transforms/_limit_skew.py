"""A bound on skew-symmetric blocks, within which maps to rotations are accurate."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from optax_matrix.linalg import skew_norm, to_skew, triangle_side
from optax_matrix.transforms._checks import check_positive


def limit_skew_norm(
    max_norm: ArrayLike = 0.5,
) -> optax.GradientTransformationExtraArgs:
    r"""Keeps skew-symmetric blocks Q within a norm; to be last in what moves them.

    .. math::
        Q + \Delta \mapsto \min\left(1, \frac{s}{\|Q + \Delta\|}\right) (Q + \Delta)

    with s the ``max_norm`` and the norm of `linalg.skew_norm`, an upper bound on the
    spectral one. `linalg.cayley_neumann` multiplies singular values by at most
    :math:`\sqrt{1 + s^{10}}`, which is 1.0005 at s = 0.5, and 1.4 at 1. A block
    within the bound moves as it would without.

    Args:
        max_norm: The bound s, above zero.

    Returns:
        A transformation of trees of triangles ``(..., b (b - 1) / 2)``, as `spo` and
        `weights.Reparameterization` have them. It needs `params`.

    Raises:
        ValueError: If ``max_norm`` is not positive; at `update`, if `params` is
            missing.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax
        >>> import optax_matrix as om
        >>> tx = optax.chain(optax.sgd(1.0), om.transforms.limit_skew_norm(0.5))
        >>> q, grads = {"w": jnp.array([[0.4]])}, {"w": jnp.array([[-0.3]])}
        >>> updates, _ = tx.update(grads, tx.init(q), q)
        >>> print(optax.apply_updates(q, updates)["w"])
        [[0.5]]
    """
    check_positive("max_norm", max_norm)

    def limited(update: jax.Array, q: jax.Array) -> jax.Array:
        new = q + update
        norm = skew_norm(to_skew(new, triangle_side(new.shape[-1])))[..., None]
        return jnp.where(norm > max_norm, new * (max_norm / norm) - q, update)

    def init_fn(params: Any) -> optax.EmptyState:
        del params
        return optax.EmptyState()

    def update_fn(updates: Any, state: Any, params: Any = None, **extra_args: Any):
        del extra_args
        if params is None:
            raise ValueError(
                "`params` must be passed to `update`: the bound is on the blocks; call "
                "tx.update(updates, state, params)."
            )
        return jax.tree.map(limited, updates, params), state

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)
