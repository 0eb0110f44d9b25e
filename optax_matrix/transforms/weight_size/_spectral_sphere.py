"""Steps on the sphere of a spectral norm, which power steps of each step follow."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from optax_matrix.linalg.scale import safe_divide, widened
from optax_matrix.linalg.spectral_norms import first_vectors, followed_norm


class SpectralSphereState(NamedTuple):
    """State of `finish_step` with spectral norms.

    Attributes:
        radius: Per leaf the norms of the weights at `init`, ``(..., 1, 1)``, at least
            float32; None for the current radius.
        weights: Per leaf estimates of the first four right singular vectors of the
            weights, ``(..., n, 4)``.
        update: The same of the update.
        rate: The state of the learning rate.
    """

    radius: Any
    weights: Any
    update: Any
    rate: Any


def spectral_sphere(
    rate: optax.GradientTransformation, is_fixed: bool
) -> optax.GradientTransformationExtraArgs:
    """``W' = R N(W + rate R N(D))``, where N divides by the spectral norm."""

    def norms_of(tree: Any, vectors: Any) -> tuple[Any, Any]:
        follow = lambda x, v: followed_norm(widened(jnp.asarray(x)), v)
        return _mapped(follow, tree, vectors)

    def init_fn(params):
        first = lambda w: first_vectors(widened(jnp.asarray(w)))
        norms, vectors = _mapped(first, params)
        # Those of updates begin there, in arrays of their own, which may be donated.
        of_update = jax.tree.map(jnp.copy, vectors)
        radius = norms if is_fixed else None
        return SpectralSphereState(radius, vectors, of_update, rate.init(params))

    def update_fn(updates, state, params=None, **extra_args):
        del extra_args
        radius, of_weights = state.radius, state.weights
        if not is_fixed:
            radius, of_weights = norms_of(params, of_weights)
        norms, of_update = norms_of(updates, state.update)
        toward = lambda d, norm, r: safe_divide(widened(d), norm) * r
        directions = jax.tree.map(toward, updates, norms, radius)
        steps, new_rate = rate.update(directions, state.rate)
        moved = lambda w, step: widened(jnp.asarray(w)) + step
        new = jax.tree.map(moved, params, steps)
        norms, of_weights = norms_of(new, of_weights)

        def step(x, norm, r, w):
            w = jnp.asarray(w)
            return (safe_divide(x, norm) * r - widened(w)).astype(w.dtype)

        steps = jax.tree.map(step, new, norms, radius, params)
        return steps, SpectralSphereState(state.radius, of_weights, of_update, new_rate)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def _mapped(f: Callable[..., tuple], tree: Any, *rest: Any) -> tuple[Any, Any]:
    """Two trees, from a function of leaves that returns two arrays."""
    leaves, structure = jax.tree.flatten(tree)
    others = (structure.flatten_up_to(x) for x in rest)
    made = [f(*each) for each in zip(leaves, *others, strict=True)]
    first, second = zip(*made, strict=True) if made else ((), ())
    return structure.unflatten(first), structure.unflatten(second)
