r"""Maps from skew-symmetric blocks to orthogonal ones, and back to the inverse.

All maps have one signature, ``(..., b, b) -> (..., b, b)``; all are functions of one
matrix, so that their values commute with Q, and all are :math:`I + 2Q + O(Q^2)` but the
exponential, which is :math:`I + Q + O(Q^2)`.
"""

import math
from collections.abc import Callable, Sequence

import jax.numpy as jnp
from jaxtyping import Array, Float

from optax_matrix.linalg._checks import check_positive_int
from optax_matrix.linalg._lapack import solve
from optax_matrix.linalg._products import full_dot
from optax_matrix.linalg._scale import as_work

Blocks = Float[Array, "*batch b b"]
Orthogonal = Callable[[Array], Array]  # (..., b, b) skew -> (..., b, b) orthogonal


def cayley_neumann(q: Blocks, terms: int = 4) -> Blocks:
    r"""Cayley transform with its inverse cut to a Neumann sum (POET's CNP).

    .. math::
        G = (I + Q)(I + Q + \dots + Q^k) = C(Q)\,(I - Q^{k+1})

    with C the exact Cayley transform and k the ``terms``. All singular values are
    :math:`\sqrt{1 + s^{2k+2}}` for even k and :math:`|1 - (-1)^{(k+1)/2} s^{k+1}|` for
    odd k, at singular values s of Q, so :math:`\|GG^\top - I\|` is about
    :math:`s^{2k+2}` or :math:`2 s^{k+1}`:

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
        ValueError: If ``terms`` is no positive int.

    Examples:
        >>> g = cayley_neumann(jnp.array([[0.0, 0.1], [-0.1, 0.0]]))
        >>> g.round(4).tolist()
        [[0.98..., 0.19...], [-0.19..., 0.98...]]

    References:
        Qiu et al., `Reparameterized LLM Training via Orthogonal Equivalence
        Transformation <https://arxiv.org/abs/2506.08001>`_ (POET), 2025, Eq. 6.
        Deviation: its tables print k = 5, most likely counting the identity as a term;
        even k is more orthogonal than the next odd one.
    """
    check_positive_int("terms", terms)
    return _polynomial(q, [1.0, *[2.0] * terms, 1.0])


def cayley_taylor(q: Blocks, terms: int = 4) -> Blocks:
    r"""Taylor polynomial of the Cayley transform.

    .. math::
        G = I + 2 (Q + Q^2 + \dots + Q^k)

    :math:`\|GG^\top - I\|` is about :math:`4 s^4` for k = 2 and 3 and :math:`4 s^6` for
    k = 4 and 5, with k the ``terms`` and s the norm of Q.

    Args:
        q: Skew-symmetric matrices ``(..., b, b)``.
        terms: k, the highest power.

    Returns:
        Nearly orthogonal matrices.

    Raises:
        ValueError: If ``terms`` is no positive int.

    Examples:
        >>> g = cayley_taylor(jnp.array([[0.0, 0.1], [-0.1, 0.0]]))
        >>> g.round(4).tolist()
        [[0.98..., 0.19...], [-0.19..., 0.98...]]

    References:
        What POET's first published code computes, as ``num_neumann_terms=5`` for k = 4,
        and what the order of k in its Table 5 fits.
    """
    check_positive_int("terms", terms)
    return _polynomial(q, [1.0, *[2.0] * terms])


def cayley(q: Blocks) -> Blocks:
    r"""Exact Cayley transform :math:`(I + Q)(I - Q)^{-1}`, by a solve.

    Orthogonal to rounding for every Q; every rotation without the angle :math:`\pi` is
    one.

    Args:
        q: Skew-symmetric matrices ``(..., b, b)``.

    Returns:
        Orthogonal matrices.

    Examples:
        >>> cayley(jnp.array([[0.0, 1.0], [-1.0, 0.0]])).round(4).tolist()
        [[0.0, 1.0], [-1.0, 0.0]]
    """
    x = as_work(q)
    eye = jnp.eye(x.shape[-1], dtype=x.dtype)
    return solve(eye - x, eye + x).astype(q.dtype)


def exponential(q: Blocks, squarings: int = 4) -> Blocks:
    r"""Matrix exponential, by scaling and squaring.

    .. math::
        G = T_8(Q / 2^j)^{2^j}

    with :math:`T_8` the Taylor polynomial of degree 8 and j the ``squarings``. The
    relative error is about :math:`2^j (s / 2^j)^9 / 9!`: with j = 4 below the rounding
    of float64 for s = 1, of float32 for s = 8.

    Args:
        q: Skew-symmetric matrices ``(..., b, b)``.
        squarings: j, the number of squarings.

    Returns:
        Orthogonal matrices.

    Raises:
        ValueError: If ``squarings`` is no positive int.

    Examples:
        >>> exponential(jnp.array([[0.0, 0.1], [-0.1, 0.0]])).round(4).tolist()
        [[0.99..., 0.099...], [-0.099..., 0.99...]]
    """
    check_positive_int("squarings", squarings)
    coefficients = [1 / math.factorial(i) for i in range(9)]
    g = _polynomial(as_work(q) / 2**squarings, coefficients)
    for _ in range(squarings):
        g = full_dot(g, g)
    return g.astype(q.dtype)


def inverse_of_orthogonal(g: Blocks, steps: int = 5) -> Blocks:
    r"""Inverse of nearly orthogonal matrices, by Newton's method from the transpose.

    .. math::
        X_0 = \frac{G^\top}{1 + e / 2}, \quad X \leftarrow X (2I - G X), \qquad
        e = \|GG^\top - I\|_F

    Each step squares the residual, so that with five steps the inverse is exact to the
    rounding of float32 up to :math:`e` about 1 where singular values are above one, as
    `cayley_neumann` of even ``terms`` has them, and 0.5 where they are below; products
    only, and never NaN for finite input: further off it is some matrix between zero and
    the inverse.

    Args:
        g: Nearly orthogonal matrices ``(..., b, b)``.
        steps: Number of steps.

    Returns:
        Their inverses.

    Raises:
        ValueError: If ``steps`` is no positive int.

    Examples:
        >>> g = jnp.array([[0.0, 1.1], [-1.1, 0.0]])
        >>> inverse_of_orthogonal(g).round(4).tolist()
        [[0.0, -0.909...], [0.909..., 0.0]]
    """
    check_positive_int("steps", steps)
    x = as_work(g)
    eye = jnp.eye(x.shape[-1], dtype=x.dtype)
    error = full_dot(x, x.mT) - eye
    size = jnp.sqrt(jnp.sum(error * error, axis=(-2, -1), keepdims=True))
    inverse = x.mT / (1 + size / 2)
    for _ in range(steps):
        inverse = full_dot(inverse, 2 * eye - full_dot(x, inverse))
    return inverse.astype(g.dtype)


def orthogonality_error(g: Float[Array, "*batch m n"]) -> Float[Array, "*batch"]:
    r"""How far rows are from orthonormal: :math:`\|GG^\top - I\|_F / \|I\|_F`.

    Args:
        g: Matrices ``(..., m, n)``.

    Returns:
        One number per matrix.

    Examples:
        >>> float(orthogonality_error(2 * jnp.eye(3)))
        3.0

    References:
        POET's :math:`e_{orth}`, Figures 8 and 21 to 23.
    """
    x = as_work(g)
    error = full_dot(x, x.mT) - jnp.eye(x.shape[-2], dtype=x.dtype)
    mean = jnp.mean(jnp.sum(error * error, axis=-1), axis=-1)
    return jnp.sqrt(mean).astype(g.dtype)


def _polynomial(q: Array, coefficients: Sequence[float]) -> Array:
    """Polynomial of a matrix in the fewest products (Paterson and Stockmeyer).

    In chunks of h coefficients, Horner's rule in Q^h: ``h - 1`` products for the powers
    and one for each chunk but the first; a last chunk of one coefficient costs none.
    """
    x = as_work(q)
    degree = len(coefficients) - 1
    products = lambda h: h + -(-degree // h)
    h = min(range(1, degree + 1), key=products)
    powers = [jnp.eye(x.shape[-1], dtype=x.dtype), x]
    while len(powers) <= h:
        powers.append(full_dot(powers[-1], x))

    def chunk(i):
        pairs = zip(coefficients[i : i + h], powers[:h], strict=False)
        return sum(c * p for c, p in pairs)

    *starts, last = range(0, degree + 1, h)
    if last == degree:  # A multiple of the identity.
        *starts, last = starts
        value = chunk(last) + coefficients[degree] * powers[h]
    else:
        value = chunk(last)
    for i in reversed(starts):
        value = chunk(i) + full_dot(powers[h], value)
    return jnp.broadcast_to(value, x.shape).astype(q.dtype)
