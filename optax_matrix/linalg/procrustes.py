"""A rotation towards the symmetric factor of a matrix, and the norm that scales it."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from optax_matrix.linalg.precision import bases, project
from optax_matrix.linalg.products import Product
from optax_matrix.linalg.random import normal, seeded
from optax_matrix.linalg.scale import safe_divide, safe_root

_VECTORS = 32
_LONGEST_STEP = 1 / 8


def estimated_norm(
    a: Float[Array, "*batch n n"], dot: Product = project
) -> Float[Array, "*batch 1 1"]:
    """Estimate the spectral norm of symmetric or skew-symmetric matrices from below.

    Of 32 fixed random vectors, shifted to the longest row, four products find it.
    """
    peak = jnp.max(abs(a), axis=(-2, -1), keepdims=True)
    a = safe_divide(a, peak)
    norms = lambda x: safe_root(jnp.sum(x * x, axis=-1, keepdims=True))
    longest = jnp.argmax(norms(a), axis=-2, keepdims=True)
    row = jnp.take_along_axis(a, longest, axis=-2)
    v = normal(seeded(0), a.shape[:-2], _VECTORS, a.shape[-1], a.dtype)
    v = row + jnp.sign(jnp.sum(row * v, axis=-1, keepdims=True)) * v
    for _ in range(2):
        v = dot(v, a)
        v = dot(safe_divide(v, norms(v)), a)
    return peak * jnp.max(norms(v), axis=-2, keepdims=True)


def procrustes_step(q: Float[Array, "*batch n n"]) -> Float[Array, "*batch n n"]:
    """Rotate Q towards its symmetric polar factor: one step on the rotation group.

    With ``R = Q' - Q`` over its norm, ``exp(a R) Q`` has the largest trace, to second
    order, at ``a = -tr(R Q) / tr(R R Q)``, of which at most 1/8 is taken.
    """
    skew = q.mT - q
    skew = safe_divide(skew, estimated_norm(skew, bases))
    first = bases(skew, q)
    second = bases(skew, first)
    trace = lambda x: jnp.trace(x, axis1=-2, axis2=-1)[..., None, None]
    slope, bend = trace(first), trace(second)
    best = slope / jnp.where(bend < 0, -bend, 1)
    a = jnp.where(bend < 0, jnp.clip(best, 0, _LONGEST_STEP), _LONGEST_STEP)
    return q + a * (first + a / 2 * second)
