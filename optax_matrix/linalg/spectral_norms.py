"""Spectral norms, bounded or estimated by products."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from optax_matrix._mesh import vary_like
from optax_matrix.linalg.precision import project, roots
from optax_matrix.linalg.products import Product, full_dot
from optax_matrix.linalg.random import normal, seeded
from optax_matrix.linalg.scale import safe_divide, safe_root, unit_peak

_SQUARINGS = 6  # Of `norm_bound`.
_PRODUCTS = 64  # Of `largest_eigenvalue`.
_VECTORS = 8  # The same; one may happen to be orthogonal to the eigenvector.
_ROWS = 32  # Of `estimated_norm`.


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


def largest_eigenvalue(
    y: Float[Array, "*batch n n"],
) -> tuple[Float[Array, "*batch 1 1"], Float[Array, "*batch 1 1"]]:
    """Estimate the largest eigenvalue from below, and bound it from above.

    The estimate is the largest Rayleigh quotient of 8 fixed vectors after 64 power
    steps. The bound adds the residual of that vector, and is at most the Frobenius norm
    and the largest sum of absolute entries in a row. For 768 rows the estimate was at
    most 2% too low, and the bound at most 1.6%, even for nearly equal eigenvalues.
    """
    start = normal(seeded(0), y.shape[:-2], y.shape[-1], _VECTORS, y.dtype)
    unit = lambda v: safe_divide(v, jnp.sqrt(jnp.sum(v * v, axis=-2, keepdims=True)))
    step = lambda _, v: unit(roots(y, v))
    v = jax.lax.fori_loop(0, _PRODUCTS, step, vary_like(unit(start), y))
    image = roots(y, v)
    quotients = jnp.sum(v * image, axis=-2, keepdims=True)
    residuals = jnp.sqrt(jnp.sum((image - quotients * v) ** 2, axis=-2, keepdims=True))
    best = jnp.argmax(quotients, axis=-1, keepdims=True)
    top = jnp.take_along_axis(quotients, best, axis=-1)
    residual = jnp.take_along_axis(residuals, best, axis=-1)
    row = jnp.max(jnp.sum(jnp.abs(y), axis=-1, keepdims=True), axis=-2, keepdims=True)
    norm = jnp.sqrt(jnp.sum(y * y, axis=(-2, -1), keepdims=True))
    return top, jnp.minimum(top + residual, jnp.minimum(row, norm))


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
    v = normal(seeded(0), a.shape[:-2], _ROWS, a.shape[-1], a.dtype)
    v = row + jnp.sign(jnp.sum(row * v, axis=-1, keepdims=True)) * v
    for _ in range(2):
        v = dot(v, a)
        v = dot(safe_divide(v, norms(v)), a)
    return peak * jnp.max(norms(v), axis=-2, keepdims=True)


def followed_norm(
    x: Float[Array, "*batch m n"], v: Float[Array, "*batch n 1"], steps: int
) -> tuple[Float[Array, "*batch 1 1"], Float[Array, "*batch n 1"]]:
    """Estimate the spectral norm of matrices from below, by power steps from a vector.

    The vector is that of the last estimate, of matrices near these. If its direction is
    off by an angle e, the norm is by at most e**2, and a step multiplies e by the
    square of the ratio of the two largest singular values. The longest row goes along:
    the estimate is never below its norm, however far the matrices went. A matrix of
    zeros has the norm zero, and keeps the vector.
    """
    y, peak = unit_peak(x)
    unit = lambda v: safe_divide(v, jnp.linalg.norm(v, axis=-2, keepdims=True))
    lengths = jnp.sum(y * y, axis=-1, keepdims=True)
    longest = jnp.argmax(lengths, axis=-2, keepdims=True)
    row = jnp.take_along_axis(y, longest, axis=-2).mT

    step = lambda _, both: roots(y.mT, unit(roots(y, unit(both))))
    both = jnp.concatenate([v, row], axis=-1)
    both = jax.lax.fori_loop(0, steps, step, vary_like(both, y))
    norms = jnp.linalg.norm(both, axis=-2, keepdims=True)
    best = jnp.argmax(norms, axis=-1, keepdims=True)
    norm = jnp.take_along_axis(norms, best, axis=-1)
    found = unit(jnp.take_along_axis(both, best, axis=-1))
    return norm * peak, jnp.where(norm == 0, v, found)


def first_vector(
    x: Float[Array, "*batch m n"],
) -> tuple[Float[Array, "*batch 1 1"], Float[Array, "*batch n 1"]]:
    """`followed_norm` from a fixed random vector, the same for all matrices."""
    v = normal(seeded(0), x.shape[:-2], x.shape[-1], 1, x.dtype)
    return followed_norm(x, v / jnp.linalg.norm(v, axis=-2, keepdims=True), _PRODUCTS)
