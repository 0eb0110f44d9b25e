r"""Maps from skew-symmetric to orthogonal blocks, and the inverse of such blocks.

All maps have the signature ``(..., b, b) -> (..., b, b)``. All are matrix functions of
Q, so that their values commute with Q. All are :math:`I + 2Q + O(Q^2)` except for the
exponential, which is :math:`I + Q + O(Q^2)`.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from optax_matrix._arguments import PositiveInt, checked
from optax_matrix._platforms import by_platform
from optax_matrix.linalg._triangular import cholesky_quotient, inverse_lower
from optax_matrix.linalg.lapack import solve
from optax_matrix.linalg.precision import roots
from optax_matrix.linalg.products import along
from optax_matrix.linalg.scale import as_work

Blocks = Float[Array, "*batch b b"]
Orthogonal = Callable[[Array], Array]  # (..., b, b) skew -> (..., b, b) orthogonal


@checked
def cayley_neumann(q: Blocks, terms: PositiveInt = 4) -> Blocks:
    r"""Cayley transform with a truncated Neumann series for its inverse (POET's CNP).

    .. math::
        G = (I + Q)(I + Q + \dots + Q^k) = C(Q)\,(I - Q^{k+1})

    where C is the exact Cayley transform and k is ``terms``. For every singular value s
    of Q the corresponding one of G is :math:`\sqrt{1 + s^{2k+2}}` for even k and
    :math:`|1 - (-1)^{(k+1)/2} s^{k+1}|` for odd k. The error
    :math:`\|GG^\top - I\|` is therefore about :math:`s^{2k+2}` or :math:`2 s^{k+1}`:

    =====  ================  ========  =============
    k      error             products  at s = 0.3
    =====  ================  ========  =============
    1      :math:`2s^2`      1         2e-1
    2      :math:`s^6`       2         7e-4
    3      :math:`2s^4`      2         2e-2
    4      :math:`s^{10}`    3         6e-6
    5      :math:`2s^6`      3         1e-3
    =====  ================  ========  =============

    Args:
        q: Skew-symmetric matrices ``(..., b, b)``.
        terms: k, the highest power in the sum.

    Returns:
        Nearly orthogonal matrices of determinant near one.

    Raises:
        ValueError: If ``terms`` is not a positive int.

    Examples:
        >>> g = cayley_neumann(jnp.array([[0.0, 0.1], [-0.1, 0.0]]))
        >>> g.round(4).tolist()
        [[0.98..., 0.19...], [-0.19..., 0.98...]]

    References:
        Qiu et al., `Reparameterized LLM Training via Orthogonal Equivalence
        Transformation <https://arxiv.org/abs/2506.08001>`_ (POET), 2025, Eq. 6.
        The default k = 4 is that of Appendix J. The tables print k = 5, most likely
        counting the identity as a term; an even k gives a smaller error than k + 1.
    """
    return _polynomial(q, [1.0, *[2.0] * terms, 1.0])


@checked
def cayley_taylor(q: Blocks, terms: PositiveInt = 4) -> Blocks:
    r"""Taylor polynomial of the Cayley transform.

    .. math::
        G = I + 2 (Q + Q^2 + \dots + Q^k)

    where k is ``terms``. With s the norm of Q, :math:`\|GG^\top - I\|` is about
    :math:`4 s^4` for k = 2 and 3, and :math:`4 s^6` for k = 4 and 5.

    Args:
        q: Skew-symmetric matrices ``(..., b, b)``.
        terms: k, the highest power.

    Returns:
        Nearly orthogonal matrices.

    Raises:
        ValueError: If ``terms`` is not a positive int.

    Examples:
        >>> g = cayley_taylor(jnp.array([[0.0, 0.1], [-0.1, 0.0]]))
        >>> g.round(4).tolist()
        [[0.98..., 0.19...], [-0.19..., 0.98...]]

    References:
        The first published code of POET computes this, with ``num_neumann_terms=5`` for
        k = 4. The ranking of the values of k in its Table 5 agrees with it.
    """
    return _polynomial(q, [1.0, *[2.0] * terms])


def cayley(q: Blocks) -> Blocks:
    r"""Exact Cayley transform :math:`(I + Q)(I - Q)^{-1}`, by a linear solve.

    On CUDA by a Cholesky factor of :math:`I + Q^\top Q` and products.

    The result is orthogonal up to rounding for every Q. Every rotation without a
    rotation angle of :math:`\pi` is the transform of some Q.

    Args:
        q: Skew-symmetric matrices ``(..., b, b)``.

    Returns:
        Orthogonal matrices.

    Examples:
        >>> cayley(jnp.array([[0.0, 1.0], [-1.0, 0.0]])).round(4).tolist()
        [[0.0, 1.0], [-1.0, 0.0]]
    """
    return _cayley(as_work(q)).astype(q.dtype)


@partial(jax.jit, inline=True)
def _cayley(q: Array) -> Array:
    return by_platform(_cayley_by_solve, q, cuda=_cayley_by_products)


def _cayley_by_solve(q: Array) -> Array:
    eye = jnp.broadcast_to(jnp.eye(q.shape[-1], dtype=q.dtype), q.shape)
    return solve(eye - q, eye + q)


@checked
def exponential(q: Blocks, squarings: PositiveInt = 4) -> Blocks:
    r"""Matrix exponential, by scaling and squaring.

    .. math::
        G = T_8(Q / 2^j)^{2^j}

    where :math:`T_8` is the Taylor polynomial of degree 8 and j is ``squarings``. The
    relative error is about :math:`2^j (s / 2^j)^9 / 9!`. With j = 4 it is below the
    rounding of float64 for s = 1 and of float32 for s = 8.

    Args:
        q: Skew-symmetric matrices ``(..., b, b)``.
        squarings: j, the number of squarings.

    Returns:
        Orthogonal matrices.

    Raises:
        ValueError: If ``squarings`` is not a positive int.

    Examples:
        >>> exponential(jnp.array([[0.0, 0.1], [-0.1, 0.0]])).round(4).tolist()
        [[0.99..., 0.099...], [-0.099..., 0.99...]]
    """
    coefficients = [1 / math.factorial(i) for i in range(9)]
    g = _polynomial(as_work(q) / 2**squarings, coefficients)
    for _ in range(squarings):
        g = roots(g, g)
    return g.astype(q.dtype)


@checked
def inverse_of_orthogonal(g: Blocks, steps: PositiveInt = 5) -> Blocks:
    r"""Inverse of nearly orthogonal matrices, by Newton's method from the transpose.

    .. math::
        X_0 = \frac{G^\top}{1 + e / 2}, \quad X \leftarrow X (2I - G X), \qquad
        e = \|GG^\top - I\|_F

    Each step squares the residual. Five steps give the inverse to the rounding of
    float32 for e up to about 1 if the singular values are above one, as those of
    `cayley_neumann` with even ``terms`` are, and for e up to 0.5 if they are below one.
    For larger e the result lies between zero and the inverse; it is never NaN.
    """
    x = as_work(g)
    eye = jnp.broadcast_to(jnp.eye(x.shape[-1], dtype=x.dtype), x.shape)
    error = roots(x, x.mT) - eye
    # The limit does not depend on the size.
    size = jax.lax.stop_gradient(jnp.linalg.norm(error, axis=(-2, -1), keepdims=True))
    inverse = x.mT / (1 + size / 2)
    for _ in range(steps):
        inverse = roots(inverse, 2 * eye - roots(x, inverse))
    return inverse.astype(g.dtype)


def _polynomial(q: Array, coefficients: Sequence[float]) -> Array:
    """Polynomial of a matrix with the fewest products (Paterson and Stockmeyer).

    Horner's rule in Q^h on chunks of h coefficients: ``h - 1`` products for the powers
    and one for each chunk but the first. A last chunk of one coefficient costs none.
    """
    x = as_work(q)
    degree = len(coefficients) - 1
    products = lambda h: h + -(-degree // h)
    h = min(range(1, degree + 1), key=products)
    eye = jnp.eye(x.shape[-1], dtype=x.dtype)
    powers = [jnp.broadcast_to(eye, x.shape), x]
    while len(powers) <= h:
        powers.append(roots(powers[-1], x))

    def chunk(i: int) -> Any:
        pairs = zip(coefficients[i : i + h], powers[:h], strict=False)
        return sum(c * p for c, p in pairs)

    *starts, last = range(0, degree + 1, h)
    if last == degree:  # A multiple of the identity.
        *starts, last = starts
        value = chunk(last) + coefficients[degree] * powers[h]
    else:
        value = chunk(last)
    for i in reversed(starts):
        value = chunk(i) + roots(powers[h], value)
    return jnp.broadcast_to(value, x.shape).astype(q.dtype)


# The form of `cayley` for CUDA, where a solve takes the blocks of a stack one after
# another through a batch of pointers from the host.


@jax.custom_jvp
def _cayley_by_products(q: Array) -> Array:
    r"""`cayley` as :math:`2X - I`, :math:`X = (I - Q)^{-1} = (I + Q)(I + Q^T Q)^{-1}`.

    The Gram matrix has the square of the condition number, so that the inverse gets a
    step of Newton's method.
    """
    eye = jnp.broadcast_to(jnp.eye(q.shape[-1], dtype=q.dtype), q.shape)
    l, quotient = cholesky_quotient(eye + roots(q.mT, q), eye + q, roots)
    x = roots(quotient, inverse_lower(l, roots))
    x = x + roots(x, eye - roots(eye - q, x))
    return 2 * x - eye


@_cayley_by_products.defjvp
def _cayley_by_products_jvp(primals, tangents):
    (q,), (dq,) = primals, tangents
    g = _cayley_by_products(q)
    x = (g + jnp.broadcast_to(jnp.eye(q.shape[-1], dtype=q.dtype), q.shape)) / 2
    return g, along(lambda dq: 2 * roots(x, roots(dq, x)), q, dq)
