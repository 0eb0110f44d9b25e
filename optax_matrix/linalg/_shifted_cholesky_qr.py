"""One pass of shifted Cholesky QR, as ARO prints it."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from optax_matrix._arguments import Positive, checked
from optax_matrix.linalg._orthonormalize import q_of_each, qr_householder
from optax_matrix.linalg._triangular import cholesky_quotient
from optax_matrix.linalg.precision import of_columns
from optax_matrix.linalg.scale import as_work, is_some


@checked
def shifted_cholesky_qr(
    x: Float[Array, "*batch m n"],
    *,
    previous: Float[Array, "*batch m n"] | None = None,
    shift: Positive = 1e-7,
) -> Float[Array, "*batch m n"]:
    r"""Compute Q of :math:`X = QR` by one pass of shifted Cholesky QR.

    .. math::
        L L^\top = X^\top X + \epsilon I, \qquad Q = X L^{-\top}

    This is ARO's kernel to the letter, for comparisons with the paper: the columns are
    orthonormal only if X is well-conditioned and its Gram matrix much larger than the
    shift. For training use `cholesky_qr`, which repeats the pass until they are.

    Args:
        x: Matrices of shape ``(..., m, n)`` with ``m >= n``.
        previous: Orthonormal columns, of the shape of ``x``, that are returned for a
            matrix that is zero or not finite; None as in `qr_householder`.
        shift: The shift :math:`\epsilon`, an absolute number.

    Returns:
        Matrices of the shape and dtype of ``x``. A matrix whose result is not finite is
        decomposed by `qr_householder`.

    Raises:
        ValueError: If there are more columns than rows, or ``shift`` is not positive.

    Examples:
        >>> print(shifted_cholesky_qr(jnp.array([[3.0, -2.0], [4.0, 4.0]])).round(3))
        [[ 0.6 -0.8]
         [ 0.8  0.6]]

    References:
        ARO, Section 4.1, with :math:`\epsilon = 10^{-7}`. The paper prints
        :math:`X L^{-1}`. Deviation: each matrix falls back by itself, where the paper
        decomposes its whole batch.
    """
    return q_of_each(_one_pass, x, previous, shift)


def _one_pass(x: Array, previous: Array | None, shift: ArrayLike) -> Array:
    y, dot = as_work(x), of_columns(x.shape[-1])
    replacement = None if previous is None else previous.astype(y.dtype)
    eye = jnp.eye(y.shape[-1], dtype=y.dtype)
    # To the letter: the shift is absolute, so columns are not scaled before.
    gram = dot(y.mT, y) + jnp.asarray(shift, y.dtype) * eye
    _, q = cholesky_quotient(gram, y, dot)
    usable = jnp.all(jnp.isfinite(q), axis=(-2, -1), keepdims=True)
    usable &= is_some(y)
    exact = lambda: qr_householder(y, previous=replacement)
    safe = lambda: jnp.where(usable, q, exact())
    return jax.lax.cond(jnp.all(usable), lambda: q, safe).astype(x.dtype)
