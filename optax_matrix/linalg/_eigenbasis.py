"""Eigenvectors of symmetric matrices, with a fixed order and fixed signs."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from optax_matrix.linalg._derivatives import eigenvectors
from optax_matrix.linalg.scale import as_work, unit_peak


def eigenbasis(
    a: Float[Array, "*batch n n"],
) -> tuple[Float[Array, "*batch n"], Float[Array, "*batch n n"]]:
    r"""Decompose symmetric matrices as :math:`A = Q\, \mathrm{diag}(w)\, Q^\top`.

    The eigenvalues are in descending order, and the largest entry of every eigenvector
    (the first of them, if there are several) is positive, so that all backends agree
    where the eigenvalues are distinct. In float32 every eigenvalue has an error of
    about 1e-6 times the largest one, and the basis is orthonormal to 1e-6.

    Args:
        a: Symmetric matrices ``(..., n, n)`` of any scale; only the symmetric part
            is used.

    Returns:
        ``(w, q)`` of shapes ``(..., n)`` and ``(..., n, n)``, float32 (or float64) for
        every input, as they are kept in a state. A zero matrix gives zeros and the
        identity.

    Raises:
        ValueError: If the matrices are not square.

    Examples:
        >>> w, q = eigenbasis(jnp.array([[1.0, 2.0], [2.0, 1.0]]))
        >>> [round(x, 3) for x in w.tolist()], q[:, 0].round(3).tolist()
        ([3.0, -1.0], [0.707..., 0.707...])
    """
    x = as_work(a)
    check_square(x)
    y, peak = unit_peak(x / 2 + x.mT / 2)
    w, q = eigenvectors(y)
    w, q = jnp.flip(w, axis=-1), jnp.flip(q, axis=-1)
    q = with_positive_peaks(q)
    eye = jnp.broadcast_to(jnp.eye(y.shape[-1], dtype=y.dtype), y.shape)
    zero = jnp.all(y == 0, axis=(-2, -1), keepdims=True)
    return w * peak[..., 0], jnp.where(zero, eye, q)


def with_positive_peaks(q: Array) -> Array:
    """Flip the signs of columns so that the largest entry of each is positive."""
    largest = jnp.argmax(jnp.abs(q), axis=-2, keepdims=True)
    return jnp.where(jnp.take_along_axis(q, largest, axis=-2) < 0, -q, q)


def check_square(x: Array) -> None:
    """Raises ValueError unless matrices are square."""
    if x.shape[-2] != x.shape[-1]:
        raise ValueError(
            f"`a` must be square matrices (..., n, n), got shape {x.shape}; pass a "
            "Gram matrix, such as x @ x.mT."
        )
