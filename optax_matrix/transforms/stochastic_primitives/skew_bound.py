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

from optax_matrix._arguments import Positive, check_positive, checked, unchecked
from optax_matrix.linalg import (
    cayley,
    cayley_neumann,
    cayley_taylor,
    skew_norm,
    to_skew,
)
from optax_matrix.linalg.scale import safe_divide
from optax_matrix.linalg.skew import triangle_side, triangle_size

BOUND = 0.5
# After `limit_skew_norm`, a norm equals the bound up to this relative error.
_ROUNDING = 2.0**-10
# Blocks have their kernels without the check of options.
_POLYNOMIALS = (unchecked(cayley_neumann), unchecked(cayley_taylor))


def bounded(
    inner: Any,
    max_norm: Any,
    orthogonal: Any,
    merge_at: Any,
) -> Any:
    """A transformation of Q that keeps it within a bound; None means no bound.

    ``"auto"`` is 0.5 for polynomial kernels, and no bound for others. A ``merge_at``
    that no norm within the bound reaches is refused.
    """
    bound: Any = max_norm
    if isinstance(max_norm, str) and max_norm == "auto":
        kernel = getattr(orthogonal, "func", orthogonal)  # Under `functools.partial`.
        bound = BOUND if unchecked(kernel) in _POLYNOMIALS else None
    elif max_norm is not None:
        check_positive("max_norm", max_norm)
    unknown = lambda x: x is None or isinstance(x, jax.core.Tracer)
    if not (unknown(merge_at) or unknown(bound)) and merge_at > bound:
        raise ValueError(
            f"`merge_at` must not exceed `max_norm` ({bound} here), got {merge_at}; "
            "Q never gets there."
        )
    return inner if bound is None else optax.chain(inner, limit_skew_norm(bound))


def kernel_for(orthogonal: Any, terms: int | None) -> Any:
    """The kernel that ``orthogonal`` and ``terms`` of `poet` mean, or `cayley`."""
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
    """Upper bounds on the norms ``(...)`` of blocks, computed one matrix at a time."""
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
    """Which matrices, ``(...)``, have a block whose norm has reached ``merge_at``.

    Norms that `limit_skew_norm` brought to the same value count as having reached it.
    """
    least = (1 - _ROUNDING) * merge_at
    due = [jnp.any(block_norms(x) >= least, axis=-1) for x in q.values()]
    return functools.reduce(jnp.logical_or, due)
