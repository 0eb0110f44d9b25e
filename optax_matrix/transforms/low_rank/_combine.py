"""Projecting gradients into a subspace, and combining the results into updates."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from optax_matrix.linalg.precision import project, roots
from optax_matrix.linalg.scale import column_norms


def coordinates(g: jax.Array, u: jax.Array) -> jax.Array:
    """Coordinates ``u.mT @ g``; entries that are rounding noise are set to zero."""
    sigma = roots(u.mT, g)
    noise = 8 * jnp.finfo(g.dtype).eps * g.shape[-2] ** 0.5
    size = column_norms(g)[..., None, :]
    return jnp.where(jnp.abs(sigma) > noise * size, sigma, 0)


def finite_or_zero(g: jax.Array) -> jax.Array:
    """Sets gradients that are not finite to zero, so that no state remembers them."""
    finite = jnp.all(jnp.isfinite(g), axis=(-2, -1), keepdims=True)
    return jnp.where(finite, g, 0)


def back_project(
    gradient: jax.Array,
    projected: jax.Array,
    answer: jax.Array,
    basis: jax.Array,
) -> jax.Array:
    """The update of GaLore and SUMO: ``basis @ answer``.

    Args:
        gradient: Gradients G, ``(..., m, n)``.
        projected: Coordinates U'G, ``(..., r, n)``.
        answer: Output of the inner transformation for these coordinates.
        basis: Basis U, ``(..., m, r)``.

    Returns:
        Updates ``(..., m, n)``.
    """
    del gradient, projected
    return project(basis, answer.astype(basis.dtype))


def as_combining(combine: Any) -> optax.GradientTransformationExtraArgs:
    """Makes the ``combine`` of `project_low_rank` a transformation."""
    if isinstance(combine, optax.GradientTransformation):
        return optax.with_extra_args_support(combine)
    if not callable(combine):
        raise ValueError(
            "`combine` must be a function of (gradient, projected, answer, basis) or a "
            f"gradient transformation, got {combine!r}; pass back_project or "
            "om.compensate(kind)."
        )

    def update_fn(
        updates,
        state,
        params=None,
        *,
        gradient=None,
        projected=None,
        basis=None,
        **extra_args,
    ):
        del params, extra_args
        return jax.tree.map(combine, gradient, projected, updates, basis), state

    return optax.GradientTransformationExtraArgs(_no_state, update_fn)


def _no_state(params: Any) -> optax.EmptyState:
    del params
    return optax.EmptyState()
