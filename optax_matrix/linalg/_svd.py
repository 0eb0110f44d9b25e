"""Singular value decompositions on every platform."""

from functools import partial

import jax.numpy as jnp
from jaxtyping import Array, Float

from optax_matrix._mesh import unsplit
from optax_matrix._platforms import by_platform, can_loop
from optax_matrix._thresholds import Thresholds
from optax_matrix.linalg import lapack
from optax_matrix.linalg._block_jacobi import eigh
from optax_matrix.linalg._orthonormalize import qr
from optax_matrix.linalg._polar_by_products import polar_by_products
from optax_matrix.linalg.products import Product, full_dot, traced_once
from optax_matrix.linalg.scale import unit_peak


@traced_once
def svd(
    x: Float[Array, "*batch m n"], dot: Product = full_dot
) -> tuple[
    Float[Array, "*batch m k"], Float[Array, "*batch k"], Float[Array, "*batch k n"]
]:
    r"""The reduced SVD: U, descending singular values, and V transposed.

    On CUDA, and on a TPU for sides of more than 256, by the polar factor P of R,
    :math:`X = QR`,

    .. math::
        P^\top R = V \Lambda V^\top, \qquad X V = U \Sigma

    with an eigendecomposition and another QR.
    """
    by_polar = partial(svd_by_polar, dot=dot)
    loops = min(x.shape[-2:]) > Thresholds.svd_side and can_loop(x)
    return by_platform(lapack.svd, x, cuda=by_polar, tpu=by_polar if loops else None)


# The form for CUDA, where an SVD takes one matrix after another, and for large matrices
# on a TPU, where the compiler takes 46 seconds for an SVD of side 512.
def svd_by_polar(x: Array, dot: Product = full_dot) -> tuple[Array, Array, Array]:
    """`svd` by a polar factor."""
    if x.shape[-2] < x.shape[-1]:
        u, s, vt = svd_by_polar(x.mT, dot)
        return vt.mT, s, u.mT
    x, peak = unit_peak(x)
    _, r = qr(x, dot)
    # R = P H, and the eigenvectors of H are the right singular vectors. H has the
    # condition number of X, and X'X its square. The columns of X V are orthogonal up to
    # rounding, which another QR removes.
    h = dot(polar_by_products(r, dot).mT, r)
    _, v = eigh((h + h.mT) / 2)
    v = jnp.flip(v, axis=-1)
    u, r = qr(dot(x, v), dot)
    s = jnp.diagonal(r, axis1=-2, axis2=-1)
    u, s = jnp.where(s[..., None, :] < 0, -u, u), jnp.abs(s)
    # Equal values may be out of order by rounding.
    order = unsplit(jnp.argsort(-s, axis=-1))
    columns = lambda y: jnp.take_along_axis(y, order[..., None, :], axis=-1)
    return columns(u), jnp.take_along_axis(peak[..., 0] * s, order, -1), columns(v).mT
