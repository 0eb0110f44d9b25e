"""A bound on skew-symmetric blocks, within which maps to rotations are accurate."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from optax_matrix.arguments import Positive, check_positive, checked
from optax_matrix.linalg import (
    cayley_neumann,
    cayley_taylor,
    skew_norm,
    to_skew,
    triangle_side,
    triangle_size,
)

BOUND = 0.5
_POLYNOMIALS = (cayley_neumann, cayley_taylor)


def bound_for(max_norm: Any, orthogonal: Any) -> Any:
    """The bound that ``"auto"`` stands for.

    Args:
        max_norm: ``"auto"``, a number, or None for no bound.
        orthogonal: Kernel from skew to orthogonal blocks.

    Returns:
        A number or None: 0.5 for kernels that are polynomials.

    Raises:
        ValueError: If ``max_norm`` is something else.
    """
    if isinstance(max_norm, str) and max_norm == "auto":
        kernel = getattr(orthogonal, "func", orthogonal)  # Under `functools.partial`.
        return BOUND if kernel in _POLYNOMIALS else None
    if max_norm is not None:
        check_positive("max_norm", max_norm)
    return max_norm


@checked
def limit_skew_norm(
    max_norm: Positive = BOUND,
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
            missing or no triangles.

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

    def limited(update: jax.Array, q: jax.Array) -> jax.Array:
        new = q + update
        norm = _norms(new)[..., None]
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


def _norms(triangles: jax.Array) -> jax.Array:
    """Bounds on the norms of blocks, for one matrix after the other."""
    side = triangle_side(triangles.shape[-1])
    if triangle_size(side) != triangles.shape[-1]:
        raise ValueError(
            "`params` must be triangles (..., b (b - 1) / 2), got shape "
            f"{triangles.shape}; apply this to the Q of `spo` or `reparameterize` only."
        )
    norm = lambda x: skew_norm(to_skew(x, side))
    # A loop over an axis that is sharded over an Explicit mesh is not possible.
    if triangles.ndim < 3 or jax.typeof(triangles).sharding.spec[0] is not None:
        return norm(triangles)
    return jax.lax.map(norm, triangles)
