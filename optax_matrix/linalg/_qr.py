"""QR decompositions on every platform."""

from functools import partial

import jax.numpy as jnp
from jaxtyping import Array, Float

from optax_matrix._thresholds import Thresholds
from optax_matrix.linalg import lapack
from optax_matrix.linalg._cholesky_passes import cholesky_passes
from optax_matrix.linalg.loops import batched_on_cuda, looped_on_tpu
from optax_matrix.linalg.products import Product, full_dot, traced_once
from optax_matrix.linalg.scale import unit_peak

_SHIFT = 1e-7


@traced_once
def qr(
    x: Float[Array, "*batch m n"], dot: Product = full_dot
) -> tuple[Float[Array, "*batch m n"], Float[Array, "*batch n n"]]:
    """The reduced QR decomposition of matrices with ``m >= n``.

    By Householder reflections; on CUDA, and on a TPU for more than 1024 columns, by
    Cholesky QR. The signs of the diagonal of R depend on the platform.
    """
    by_cholesky = partial(qr_by_cholesky, dot=dot)
    if x.shape[-1] <= Thresholds.reflected_columns:
        return batched_on_cuda(by_cholesky, lapack.qr, x)
    return looped_on_tpu(by_cholesky, lapack.qr, x, cuda=by_cholesky)


def qr_by_cholesky(x: Array, dot: Product = full_dot) -> tuple[Array, Array]:
    """`qr` by `cholesky_passes`; the diagonal of R is positive."""
    y, _ = unit_peak(x)
    eye = jnp.broadcast_to(jnp.eye(*y.shape[-2:], dtype=y.dtype), y.shape)
    zero = jnp.all(y == 0, axis=(-2, -1))
    q, done = cholesky_passes(y, eye, zero, _SHIFT, None, dot)
    q = jnp.where(done[..., None, None], q, jnp.nan)
    q = jnp.where(zero[..., None, None], eye, q)
    return q, jnp.triu(dot(q.mT, x))
