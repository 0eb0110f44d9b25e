r"""Polar factor by composed odd polynomials: Newton-Schulz and its Gram form."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, Float

from optax_matrix.linalg._coefficients import JORDAN, YOU, rows_for
from optax_matrix.linalg._scale import unit_peak, work_dtype


def newton_schulz(
    x: Float[Array, "*batch m n"],
    *,
    coefficients: Sequence[Sequence[float]] = JORDAN,
    steps: int = 5,
    eps: ArrayLike = 1e-7,
    compute_dtype: DTypeLike | None = None,
) -> Float[Array, "*batch m n"]:
    r"""Approximate the polar factor by a Newton-Schulz iteration.

    Each step applies an odd quintic to the singular values,

    .. math::
        X \leftarrow a X + (b A + c A^2) X, \qquad A = X X^\top,

    started from :math:`X / \|X\|_F`, on the short side of the matrix.

    Args:
        x: Matrices of shape ``(..., m, n)``.
        coefficients: Rows ``(a, b, c)``, one per step; the last one repeats.
        steps: Number of steps.
        eps: Added to the Frobenius norm, relative to the largest entry, so that
            the result does not depend on the scale of ``x``.
        compute_dtype: Precision of the products, which accumulate in float32.
            None: the precision of ``x``, but at least float32; ``jnp.bfloat16`` is
            safe and fast on accelerators.

    Returns:
        Matrices of the shape and dtype of ``x``; a zero matrix gives zero.

    Raises:
        ValueError: If ``coefficients`` or ``steps`` is malformed.

    Examples:
        >>> x = jnp.array([[3.0, 0.0, 0.0], [0.0, 0.0, -2.0]])
        >>> print(newton_schulz(x, coefficients=[(1.5, -0.5, 0.0)], steps=12).round(3))
        [[ 1.  0.  0.]
         [ 0.  0. -1.]]

    References:
        Jordan et al., `Muon <https://kellerjordan.github.io/posts/muon/>`_, 2024.
        Deviation: ``eps`` acts relative to the scale of the matrix.
    """
    rows = rows_for(coefficients, steps)
    dtype = jnp.dtype(compute_dtype or work_dtype(x.dtype))
    y, transposed = _start(x, eps)
    y = y.astype(dtype)
    for a, b, c in rows:
        gram = _dot(y, y.mT)
        narrow = gram.astype(dtype)
        z = b * gram + c * _dot(narrow, narrow)
        y = (a * y + _dot(z.astype(dtype), y)).astype(dtype)
    return (y.mT if transposed else y).astype(x.dtype)


def gram_newton_schulz(
    x: Float[Array, "*batch m n"],
    *,
    coefficients: Sequence[Sequence[float]] = YOU,
    steps: int = 5,
    restarts: Sequence[int] = (2,),
    eps: ArrayLike = 1e-7,
    compute_dtype: DTypeLike | None = None,
) -> Float[Array, "*batch m n"]:
    r"""Approximate the polar factor, iterating on the small Gram matrix.

    The polynomials of :func:`newton_schulz` are accumulated in a square factor,

    .. math::
        Z = b R + c R^2, \quad Q \leftarrow Q (a I + Z), \quad
        R \leftarrow (a I + Z) R (a I + Z), \qquad R_0 = X X^\top,

    so that the long side enters only at the start, at restarts and at the end
    (:math:`X \leftarrow Q X`). With plain products it saves from ``n >= 1.5 m`` on.
    Squaring the condition number makes it unsafe in bfloat16, even with the
    restart: with products rounded to bfloat16 singular values of 3 to 10 were seen.

    Args:
        x: Matrices of shape ``(..., m, n)``.
        coefficients: Rows ``(a, b, c)``, one per step; the last one repeats.
        steps: Number of steps.
        restarts: Step indices before which ``X`` and its Gram matrix are formed
            anew, which stops the growth of rounding errors in ``R``.
        eps: As in :func:`newton_schulz`.
        compute_dtype: As in :func:`newton_schulz`, but stay at float32 or float16.

    Returns:
        Matrices of the shape and dtype of ``x``; a zero matrix gives zero.

    Raises:
        ValueError: If ``coefficients`` or ``steps`` is malformed.

    Examples:
        >>> x = jnp.array([[3.0, 0.0, 0.0], [0.0, 0.0, -2.0]])
        >>> print(
        ...     gram_newton_schulz(x, coefficients=[(1.5, -0.5, 0.0)], steps=12).round(
        ...         3
        ...     )
        ... )
        [[ 1.  0.  0.]
         [ 0.  0. -1.]]

    References:
        Dao AI Lab, `Gram Newton-Schulz
        <https://dao-ailab.github.io/blog/2026/gram-newton-schulz/>`_, 2026.
    """
    rows = rows_for(coefficients, steps)
    dtype = jnp.dtype(compute_dtype or work_dtype(x.dtype))
    y, transposed = _start(x, eps)
    y = y.astype(dtype)
    q = r = None
    for i, (a, b, c) in enumerate(rows):
        if q is not None and i in restarts:
            y, q = _dot(q, y).astype(dtype), None
        if q is None or r is None:
            r = _dot(y, y.mT).astype(dtype)
        z = (b * r + c * _precise_dot(r, r)).astype(dtype)
        # a I stays out of Z: adding it would round the small entries of Z away.
        if q is None:
            q = _add_to_diagonal(z, a)
        else:
            q = (a * q + _precise_dot(q, z)).astype(dtype)
        if i + 1 < len(rows) and i + 1 not in restarts:
            t = (a * r + _precise_dot(r, z)).astype(dtype)
            r = (a * t + _precise_dot(z, t)).astype(dtype)
    if q is not None:
        y = _dot(q, y)
    return (y.mT if transposed else y).astype(x.dtype)


def _start(x: Array, eps: ArrayLike) -> tuple[Array, bool]:
    """Return ``x`` in the working precision, wide and of Frobenius norm one."""
    x = x.astype(work_dtype(x.dtype))
    transposed = x.shape[-2] > x.shape[-1]
    x, _ = unit_peak(x.mT if transposed else x)
    norm = jnp.sqrt(jnp.sum(x * x, axis=(-2, -1), keepdims=True))
    return x / (norm + jnp.asarray(eps, x.dtype)), transposed


def _dot(x: Array, y: Array) -> Array:
    """Multiply, accumulating and returning at least float32."""
    return jnp.matmul(x, y, preferred_element_type=work_dtype(x.dtype))


def _precise_dot(x: Array, y: Array) -> Array:
    """Multiply square factors; float32 must not be cut to one bfloat16 pass."""
    return jnp.matmul(
        x,
        y,
        precision=jax.lax.Precision.HIGH,
        preferred_element_type=work_dtype(x.dtype),
    )


def _add_to_diagonal(x: Array, a: float) -> Array:
    return x + a * jnp.eye(x.shape[-1], dtype=x.dtype)
