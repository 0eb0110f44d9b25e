"""Divide the rows and columns of matrices by their norms, or fit their squares."""

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from optax_matrix._arguments import PositiveInt, checked
from optax_matrix.linalg.products import times
from optax_matrix.linalg.scale import (
    as_work,
    inverse,
    inverse_norms,
    kept_apart,
    peak_or_one,
    roots_with_floor,
    safe_root,
    safe_rsqrt,
    squares_of,
    unit_peak,
)


def scale_rows(
    x: Float[Array, "*batch m n"], eps: ArrayLike = 1e-8
) -> Float[Array, "*batch m n"]:
    r"""Divide every row by its Euclidean norm.

    .. math::
        x_i \leftarrow x_i / \sqrt{\|x_i\|^2 + \epsilon\,\mathrm{mean}_k \|x_k\|^2}

    Args:
        x: Matrices of shape ``(..., m, n)``.
        eps: Added to the squared row norms, relative to their mean.

    Returns:
        Matrices of the shape and dtype of ``x``; zero rows stay zero.

    Examples:
        >>> print(scale_rows(jnp.array([[3.0, 4.0], [0.0, 0.0]])).round(3))
        [[0.6 0.8]
         [0.  0. ]]

    References:
        MuonEq, R. Deviation: ``eps`` is relative, so that the result does not
        depend on the scale of ``x``.
    """
    return _over_norms(x, -1, eps)


def _over_norms(x: Array, axis: int, eps: ArrayLike) -> Array:
    # Otherwise XLA on CUDA could not write a new momentum, which x comes from, over the
    # old one.
    y = as_work(kept_apart(x))
    squares, divisor = squares_of(y, peak_or_one(y), axis)
    return (y / divisor * inverse_norms(squares, eps)).astype(x.dtype)


def scale_columns(
    x: Float[Array, "*batch m n"], eps: ArrayLike = 1e-8
) -> Float[Array, "*batch m n"]:
    """Divide every column by its Euclidean norm, as :func:`scale_rows` does rows.

    Args:
        x: Matrices of shape ``(..., m, n)``.
        eps: Added to the squared column norms, relative to their mean.

    Returns:
        Matrices of the shape and dtype of ``x``; zero columns stay zero.

    Examples:
        >>> print(scale_columns(jnp.array([[3.0, 0.0], [4.0, 0.0]])).round(3))
        [[0.6 0. ]
         [0.8 0. ]]
    """
    return _over_norms(x, -2, eps)


def scale_rows_and_columns(
    x: Float[Array, "*batch m n"], eps: ArrayLike = 1e-8
) -> Float[Array, "*batch m n"]:
    r"""Divide by row norms and column norms, both taken from ``x`` itself.

    .. math::
        X \leftarrow \|X\|_F\, D_r^{-1/2} X D_c^{-1/2}

    Args:
        x: Matrices of shape ``(..., m, n)``.
        eps: Added to the squared norms, relative to the mean over that side.

    Returns:
        Matrices of the shape and dtype of ``x``; zero rows and columns stay zero.

    Examples:
        >>> print(scale_rows_and_columns(jnp.array([[3.0, 0.0], [0.0, 4.0]])).round(3))
        [[1.667 0.   ]
         [0.    1.25 ]]

    References:
        MuonEq, RC. Deviation: the factor :math:`\|X\|_F`, which makes the result
        independent of the scale of ``x``; it does not change the polar factor.
    """
    y, _ = unit_peak(as_work(x))
    norm = safe_root(jnp.sum(y * y, axis=(-2, -1), keepdims=True))
    rows, columns = (jnp.sum(y * y, axis=i, keepdims=True) for i in (-1, -2))
    y = norm * y * inverse_norms(rows, eps) * inverse_norms(columns, eps)
    return y.astype(x.dtype)


def standardize_rows(
    x: Float[Array, "*batch m n"], eps: ArrayLike = 1e-8
) -> Float[Array, "*batch m n"]:
    r"""Scale and shift every row to mean zero and standard deviation one.

    .. math::
        x_i \leftarrow (x_i - \bar x_i) / \sqrt{\mathrm{var}(x_i) + \epsilon\, q},
        \qquad q = \mathrm{mean}(X^2)

    Args:
        x: Matrices of shape ``(..., m, n)``.
        eps: Added to the variances, relative to the mean square of the matrix.

    Returns:
        Matrices of the shape and dtype of ``x``. Rows whose entries are equal up to
        rounding, with a deviation of at most 4 machine epsilons, become zero.

    Examples:
        >>> print(standardize_rows(jnp.array([[1.0, 3.0], [2.0, 2.0]])).round(3))
        [[-1.  1.]
         [ 0.  0.]]

    References:
        SWAN, GradNorm. Deviation: ``eps`` is relative.
    """
    y, _ = unit_peak(as_work(x))
    squares = jnp.mean(y * y, axis=-1, keepdims=True)
    floor = jnp.asarray(eps, y.dtype) * jnp.mean(squares, axis=-2, keepdims=True)
    for _ in range(2):  # The rounding of the first mean is itself a constant.
        y = y - jnp.mean(y, axis=-1, keepdims=True)
    variance = jnp.mean(y * y, axis=-1, keepdims=True)
    constant = variance <= (4 * jnp.finfo(y.dtype).eps) ** 2 * squares
    return jnp.where(constant, 0, y * safe_rsqrt(variance + floor)).astype(x.dtype)


@checked
def rank_one_scales(
    x: Float[Array, "*batch m n"], rounds: PositiveInt = 5
) -> tuple[Float[Array, "*batch m"], Float[Array, "*batch n"]]:
    r"""Fit :math:`X^2 \approx q s^\top` and return the square roots of both factors.

    .. math::
        s = P^\top q / \|q\|^2, \qquad q = P s / \|s\|^2, \qquad P = X^2,

    started from :math:`q = 1`: power iterations for the leading singular vectors of P.
    A matrix with more rows than columns is transposed, so that :math:`q` belongs to the
    shorter side.

    Args:
        x: Matrices of shape ``(..., m, n)``.
        rounds: Number of iterations.

    Returns:
        ``(row, col)`` with ``row**2 = q`` of shape ``(..., m)`` and ``col**2 = s`` of
        shape ``(..., n)``, float32 (or float64) for every input, as they are kept in a
        state. A zero matrix gives zeros.

    Note:
        The scales of the shorter side do not depend on the scale of ``x``. Those of the
        longer side are proportional to it and do not overflow unless ``x`` does. For a
        square matrix the shorter side is that of the rows.

    Raises:
        ValueError: If ``rounds`` is not a positive int.

    Examples:
        >>> x = jnp.array([[1.0, 2.0], [3.0, -6.0]])
        >>> row, col = rank_one_scales(x)
        >>> bool(jnp.allclose(row[:, None] * col, jnp.abs(x)))
        True

    References:
        RACS, Proposition 3, Algorithm 1. Deviations: square roots of the paper's
        vectors; the scale of a row or column that is not zero is at least 1e-15 times
        the largest, where the paper's vanishes in rounding.
    """
    y, peak = unit_peak(as_work(x))
    tall = y.shape[-2] > y.shape[-1]
    y = y.mT if tall else y
    p = y * y
    q, s = jnp.ones_like(p[..., 0]), jnp.zeros_like(p[..., 0, :])
    for _ in range(rounds):
        s = times(p.mT, q) * inverse(_square_norm(q))
        q = times(p, s) * inverse(_square_norm(s))
    short, long = (
        roots_with_floor(squares, jnp.any(y != 0, axis=axis))
        for squares, axis in ((q, -1), (s, -2))
    )
    long = peak[..., 0] * long
    return (long, short) if tall else (short, long)


def _square_norm(v: Array) -> Array:
    return jnp.sum(v * v, axis=-1, keepdims=True)
