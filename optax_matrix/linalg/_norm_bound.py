"""A bound on the spectral norm of symmetric matrices."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from optax_matrix._mesh import vary_like
from optax_matrix.linalg.products import Product, full_dot

_SQUARINGS = 6


def norm_bound(
    h: Float[Array, "*batch n n"], dot: Product = full_dot
) -> Float[Array, "*batch 1 1"]:
    """Bound the spectral norm of symmetric matrices by repeated squaring.

    The Frobenius norm of ``H**64`` exceeds its spectral norm by a factor of at most
    ``sqrt(n)``, so its 64th root exceeds that of H by a factor of at most
    ``n**(1 / 128)``: 5% for n = 1000, and nothing if one eigenvalue dominates.
    """

    def normalize(i: Array, bound: Array, h: Array) -> tuple[Array, Array]:
        norm = jnp.linalg.norm(h, axis=(-2, -1), keepdims=True)
        h = h / jnp.where(norm > 0, norm, 1)
        return bound * norm ** (0.5 ** i.astype(h.dtype)), h

    def square(i: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        bound, h = state
        return normalize(i + 1, bound, dot(h, h))

    start = normalize(jnp.zeros((), jnp.int32), jnp.ones_like(h[..., :1, :1]), h)
    return jax.lax.fori_loop(0, _SQUARINGS, square, vary_like(start, h))[0]
