"""Polar factors of square matrices by weighted Halley iterations."""

import math
from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from optax_matrix.linalg._polar_by_products import polar_by_products
from optax_matrix.linalg._qr import qr
from optax_matrix.linalg._triangular import cholesky_quotient, inverse_lower
from optax_matrix.linalg.loops import batched_on_cuda
from optax_matrix.linalg.products import Product, full_dot, traced_once

# Above this weight I + c X'X is so badly conditioned that its inverse loses accuracy.
_MAX_CHOLESKY_WEIGHT = 100.0


@traced_once
def qdwh(
    x: Float[Array, "*batch n n"], dot: Product = full_dot
) -> Float[Array, "*batch n n"]:
    """Approximate the polar factor of square matrices of any scale; see `polar_qdwh`.

    Singular values at the level of rounding become any in [0, 1].
    """
    by_products = partial(polar_by_products, dot=dot)
    return batched_on_cuda(by_products, partial(_by_halley, dot=dot), x)


def _by_halley(x: Array, dot: Product) -> Array:
    norm = jnp.linalg.norm(x, axis=(-2, -1), keepdims=True)
    x = x / jnp.where(norm > 0, norm, 1.0)
    eps = float(jnp.finfo(x.dtype).eps)
    m = x.shape[-1]
    eye = jnp.broadcast_to(jnp.eye(m, dtype=x.dtype), x.shape)

    # With [sqrt(c) X; I] = [Q1; Q2] R the product Q1 Q2' is sqrt(c) X (I + c X'X)^-1:
    # the step without forming X'X, whose rounding would hide small singular values.
    def by_qr(x: Array, weights: Array) -> tuple[Array, None]:
        root = jnp.sqrt(weights[2])
        q, _ = qr(jnp.concatenate([root * x, eye], axis=-2), dot)
        halley = dot(q[..., :m, :], q[..., m:, :].mT) / root
        return _combined(x, halley, weights), None

    def by_cholesky(x: Array, weights: Array) -> tuple[Array, None]:
        l, q = cholesky_quotient(eye + weights[2] * dot(x.mT, x), x, dot)
        return _combined(x, dot(q, inverse_lower(l, dot)), weights), None

    # The Frobenius norm exceeds the spectral norm by at most sqrt(m).
    table = _weights(eps / math.sqrt(m), eps)
    large = sum(c > _MAX_CHOLESKY_WEIGHT for _, _, c in table)
    # Loops, since compilers would compile every unrolled step.
    x, _ = jax.lax.scan(by_qr, x, jnp.asarray(table[:large], x.dtype))
    x, _ = jax.lax.scan(by_cholesky, x, jnp.asarray(table[large:], x.dtype))
    return x


def _combined(x: Array, halley: Array, weights: Array) -> Array:
    a, b, c = weights
    return (b / c) * x + (a - b / c) * halley


@lru_cache
def _weights(l: float, eps: float) -> tuple[tuple[float, float, float], ...]:
    """Return the weights of the steps that map ``[l, 1]`` to one within eps."""
    weights = []
    while 1 - l > eps:
        l2 = l * l
        d = np.cbrt(4 * (1 - l2) / (l2 * l2))
        root = math.sqrt(1 + d)
        a = root + math.sqrt(8 - 4 * d + 8 * (2 - l2) / (l2 * root)) / 2
        b = (a - 1) ** 2 / 4
        c = a + b - 1
        weights.append((float(a), float(b), float(c)))
        l = min(l * (a + b * l2) / (1 + c * l2), 1.0)
    return tuple(weights)
