"""A bound on the norm of skew-symmetric blocks.

Polynomial maps from skew-symmetric to orthogonal matrices are accurate only for small
norms.
"""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from optax_matrix._arguments import Positive, check_positive, checked
from optax_matrix.linalg import (
    cayley,
    cayley_neumann,
    cayley_taylor,
    skew_norm,
    to_skew,
    triangle_side,
    triangle_size,
)
from optax_matrix.linalg.scale import safe_divide

BOUND = 0.5
# After `limit_skew_norm`, a norm equals the bound up to this relative error.
_ROUNDING = 2.0**-10
_POLYNOMIALS = (cayley_neumann, cayley_taylor)


def bounded(inner: Any, max_norm: Any, orthogonal: Any, merge_at: Any) -> Any:
    """A transformation of Q that keeps it within a bound.

    Args:
        inner: The transformation.
        max_norm: A number, None for no bound, or ``"auto"``: 0.5 for polynomial
            kernels, otherwise None.
        orthogonal: Kernel from skew to orthogonal blocks.
        merge_at: Norm at which a matrix is merged by itself, or None.

    Returns:
        The transformation, with `limit_skew_norm` at its end if there is a bound.

    Raises:
        ValueError: If ``max_norm`` is none of these, or ``merge_at`` exceeds it.
    """
    bound = _bound(max_norm, orthogonal)
    _check_reached(merge_at, bound)
    return inner if bound is None else optax.chain(inner, limit_skew_norm(bound))


def _bound(max_norm: Any, orthogonal: Any) -> Any:
    if isinstance(max_norm, str) and max_norm == "auto":
        kernel = getattr(orthogonal, "func", orthogonal)  # Under `functools.partial`.
        return BOUND if kernel in _POLYNOMIALS else None
    if max_norm is not None:
        check_positive("max_norm", max_norm)
    return max_norm


def _check_reached(merge_at: Any, bound: Any) -> None:
    """Raises if no norm within the bound reaches ``merge_at``."""
    values = merge_at, bound
    if any(x is None or isinstance(x, jax.core.Tracer) for x in values):
        return
    if merge_at > bound:
        raise ValueError(
            f"`merge_at` must not exceed `max_norm` ({bound} here), got {merge_at}; "
            "Q never gets there."
        )


def kernel_for(orthogonal: Any, terms: int | None) -> Any:
    """The kernel that the arguments ``orthogonal`` and ``terms`` of `poet` mean.

    Args:
        orthogonal: A kernel, or None.
        terms: Number of terms of `linalg.cayley_neumann`, or None.

    Returns:
        The kernel; `linalg.cayley` if both are None.

    Raises:
        ValueError: If both are given.
    """
    if terms is None:
        return orthogonal or cayley
    if orthogonal is not None:
        raise ValueError(
            f"`terms` must be None beside `orthogonal`, got {terms}; pass one of them."
        )
    return functools.partial(cayley_neumann, terms=terms)


@checked
def limit_skew_norm(
    max_norm: Positive = BOUND,
) -> optax.GradientTransformationExtraArgs:
    r"""Limits the norm of skew-symmetric blocks Q.

    Put it last in the chain that updates the blocks.

    .. math::
        Q + \Delta \mapsto \min\left(1, \frac{s}{\|Q + \Delta\|}\right) (Q + \Delta)

    where s is ``max_norm`` and the norm is `linalg.skew_norm`, an upper bound on the
    spectral norm. `linalg.cayley_neumann` multiplies singular values by at most
    :math:`\sqrt{1 + s^{10}}`, which is 1.0005 at s = 0.5, and 1.4 at 1. The update of
    a block that stays within the bound is not changed.

    Args:
        max_norm: The bound s, above zero.

    Returns:
        A transformation of trees of triangles ``(..., b (b - 1) / 2)``, the format of
        `spo` and `weights.Reparameterization`. It needs `params`.

    Raises:
        ValueError: If ``max_norm`` is not positive; at `update`, if `params` is
            missing or does not consist of triangles.

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
        norm = block_norms(new, "params")[..., None]
        scaled = safe_divide(new, norm) * max_norm
        return jnp.where(norm > max_norm, scaled - q, update)

    def init_fn(params: Any) -> optax.EmptyState:
        del params
        return optax.EmptyState()

    def update_fn(updates: Any, state: Any, params: Any = None, **extra_args: Any):
        del extra_args
        if params is None:
            raise ValueError(
                "`params` must be passed to `update`, because the bound applies to the "
                "updated blocks; call tx.update(updates, state, params)."
            )
        return jax.tree.map(limited, updates, params), state

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def block_norms(triangles: jax.Array, name: str = "q") -> jax.Array:
    """Upper bounds on the norms of blocks, computed one matrix at a time.

    Args:
        triangles: Triangles ``(..., b (b - 1) / 2)``.
        name: Name of the argument that they come from, for the message.

    Returns:
        `linalg.skew_norm` of each block, ``(...)``.

    Raises:
        ValueError: If the last axis has another length.
    """
    side = triangle_side(triangles.shape[-1])
    if triangle_size(side) != triangles.shape[-1]:
        raise ValueError(
            f"`{name}` must be triangles (..., b (b - 1) / 2), got shape "
            f"{triangles.shape}; apply this to the Q of `spo` or `reparameterize` only."
        )
    norm = lambda x: skew_norm(to_skew(x, side))
    # JAX cannot loop over an axis that is sharded over an Explicit mesh.
    if triangles.ndim < 3 or jax.typeof(triangles).sharding.spec[0] is not None:
        return norm(triangles)
    return jax.lax.map(norm, triangles)


def reached(q: Mapping[str, jax.Array], merge_at: ArrayLike) -> jax.Array:
    """Which matrices have a block whose norm has reached a value.

    Args:
        q: Triangles ``(..., k, b (b - 1) / 2)`` for each side that rotates.
        merge_at: The value. Norms that `limit_skew_norm` brought to the same value
            count as having reached it.

    Returns:
        Booleans ``(...)``.
    """
    least = (1 - _ROUNDING) * merge_at
    due = [jnp.any(block_norms(x) >= least, axis=-1) for x in q.values()]
    return functools.reduce(jnp.logical_or, due)
