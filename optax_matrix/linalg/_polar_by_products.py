"""Polar factors by products alone, for any condition number."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from optax_matrix.linalg.coefficients import Table, polar_express
from optax_matrix.linalg.products import Product, full_dot, traced_once

# A step maps some singular values down to this part of the largest one. With less,
# there are fewer steps, and the rounding of these values grows.
_CUSHION = 0.05
# Rounding may move singular values out of a row's interval by this factor.
_SAFETY = 1.0001


@functools.partial(traced_once, static_argnames=("dot", "symmetric"))
def polar_by_products(
    x: Float[Array, "*batch m n"], dot: Product = full_dot, symmetric: bool = False
) -> Float[Array, "*batch m n"]:
    r"""Approximate the polar factor of wide or square matrices of any scale.

    The quintics of `polar_express`, each fitted to the interval that the one before
    leaves, map all singular values to one, from the level of rounding to the largest:

    .. math::
        X \leftarrow a X + (b A + c A^2) X, \qquad A = X X^\top

    A quintic multiplies each singular value by a factor of its own, so that small ones
    keep their accuracy although A is formed. Singular values at the level of rounding
    become any number in [0, 1]. The factor of a ``symmetric`` matrix is its sign. Each
    step makes it symmetric again, or rounding would rotate the eigenvectors of small
    eigenvalues.
    """
    norm = jnp.linalg.norm(x, axis=(-2, -1), keepdims=True)
    x = x / jnp.where(norm > 0, norm, 1)

    def step(x: Array, row: Array) -> tuple[Array, None]:
        a, b, c = row
        gram = dot(x, x.mT)
        x = a * x + dot(b * gram + c * dot(gram, gram), x)
        return (x + x.mT) / 2 if symmetric else x, None

    rows = table(float(jnp.finfo(x.dtype).eps))
    return jax.lax.scan(step, x, jnp.asarray(rows, x.dtype))[0]


@functools.lru_cache
def table(eps: float) -> Table:
    """As many rows as singular values at the level of rounding need.

    That level is eps of the Frobenius norm, which for a side of 4096 is up to 64 times
    the largest singular value.
    """
    lowest = eps / 64
    for steps in range(1, 100):
        rows = polar_express(steps, lowest, cushion=_CUSHION, safety=_SAFETY)
        least = lowest
        for a, b, c in rows:
            least = a * least + b * least**3 + c * least**5
        if abs(1 - least) < eps:
            break
    return rows
