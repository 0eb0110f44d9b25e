"""Singular value decompositions on every platform."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from optax_matrix.linalg import lapack
from optax_matrix.linalg._qdwh import qdwh
from optax_matrix.linalg._qr import qr
from optax_matrix.linalg.products import full_dot, is_local

_LARGE = 256


def svd(
    x: Float[Array, "*batch m n"],
) -> tuple[
    Float[Array, "*batch m k"], Float[Array, "*batch k"], Float[Array, "*batch k n"]
]:
    r"""Compute the reduced singular value decomposition.

    On a TPU, for sides of more than 256, by the polar factor P of R, :math:`X = QR`,

    .. math::
        P^\top R = V \Lambda V^\top, \qquad X V = U \Sigma

    with an eigendecomposition and another QR. For a side of 512 compilers for TPU take
    46 processor seconds for their own decomposition.

    Args:
        x: Matrices ``(..., m, n)`` in the working precision.

    Returns:
        U, descending singular values, and V transposed. The errors of the singular
        values are rounding of the largest one.

    Examples:
        >>> _, s, _ = svd(jnp.array([[0.0, 4.0], [3.0, 0.0]]))
        >>> s.round(3).tolist()
        [4.0, 3.0]
    """
    if min(x.shape[-2:]) <= _LARGE or not is_local(x):
        return lapack.svd(x)
    return jax.lax.platform_dependent(x, tpu=svd_by_polar, default=lapack.svd)


def svd_by_polar(x: Array) -> tuple[Array, Array, Array]:
    """`svd` by a polar factor, whose scale must be moderate."""
    if x.shape[-2] < x.shape[-1]:
        u, s, vt = svd_by_polar(x.mT)
        return vt.mT, s, u.mT
    _, r = qr(x)
    h = full_dot(qdwh(r).mT, r)
    _, v = lapack.eigh((h + h.mT) / 2)
    v = jnp.flip(v, axis=-1)
    u, r = qr(full_dot(x, v))
    s = jnp.diagonal(r, axis1=-2, axis2=-1)
    return jnp.where(s[..., None, :] < 0, -u, u), jnp.abs(s), v.mT
