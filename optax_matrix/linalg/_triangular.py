"""Inverses of triangular matrices, and quotients by Cholesky factors."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from optax_matrix._mesh import vary_like
from optax_matrix._platforms import by_platform, can_loop
from optax_matrix._thresholds import Thresholds
from optax_matrix.linalg.lapack import cholesky, solve_lower
from optax_matrix.linalg.products import Product, full_dot, traced_once


@traced_once
def cholesky_quotient(
    a: Float[Array, "*batch n n"],
    y: Float[Array, "*batch m n"],
    dot: Product = full_dot,
) -> tuple[Float[Array, "*batch n n"], Float[Array, "*batch m n"]]:
    r"""The Cholesky factor of A and the quotient of Y by it.

    .. math::
        L L^\top = A, \qquad Q = Y L^{-\top}

    Neither is finite where A is not positive definite. On a TPU, panels of 128 columns
    of L and Q are computed in a loop, all by the same products: for panel k, with the
    rows of A above the rows of Y,

    .. math::
        \begin{pmatrix} L_{\cdot k} \\ Q_k \end{pmatrix} = \Bigl(
        \begin{pmatrix} A_{\cdot k} \\ Y_k \end{pmatrix} - \sum_{j < k}
        \begin{pmatrix} L_{\cdot j} \\ Q_j \end{pmatrix} L_{k j}^\top \Bigr)
        L_{k k}^{-\top}
    """

    def quotient(a: Array, y: Array) -> tuple[Array, Array]:
        l = cholesky(a)
        return l, dot(y, inverse_lower(l, dot).mT)

    loops = a.shape[-1] > 2 * Thresholds.triangular_block and can_loop(a, y)
    panels = partial(quotient_by_panels, dot=dot)
    return by_platform(quotient, a, y, tpu=panels if loops else None)


@traced_once
def inverse_lower(
    l: Float[Array, "*batch n n"], dot: Product = full_dot
) -> Float[Array, "*batch n n"]:
    r"""Invert lower triangular matrices with zeros above the diagonal.

    .. math::
        \begin{pmatrix} A & \\ C & B \end{pmatrix}^{-1} =
        \begin{pmatrix} A^{-1} & \\ -B^{-1} C A^{-1} & B^{-1} \end{pmatrix}

    Both diagonal blocks are inverted as one stack, recursively, so that a single
    triangular solve of side at most 128 remains for every size; the rest is products.
    """
    n = l.shape[-1]
    levels = max(0, (-(-n // Thresholds.triangular_block) - 1).bit_length())
    side = -(-n // 2**levels) * 2**levels
    eye = jnp.eye(side, dtype=l.dtype)
    if side > n:
        widths = [(0, 0)] * (l.ndim - 2) + [(0, side - n)] * 2
        l = jnp.pad(l, widths) + eye.at[:n, :n].set(0)[(None,) * (l.ndim - 2)]
    return _inverse(l, levels, dot)[..., :n, :n]


def _inverse(l: Array, levels: int, dot: Product) -> Array:
    if levels == 0:
        eye = jnp.broadcast_to(jnp.eye(l.shape[-1], dtype=l.dtype), l.shape)
        return solve_lower(l, eye)
    h = l.shape[-1] // 2
    halves = jnp.stack([l[..., :h, :h], l[..., h:, h:]])
    a, b = _inverse(halves, levels - 1, dot)
    c = -dot(b, dot(l[..., h:, :h], a))
    top = jnp.concatenate([a, jnp.zeros_like(c)], axis=-1)
    return jnp.concatenate([top, jnp.concatenate([c, b], axis=-1)], axis=-2)


# The form for TPU. For a side of 1024 compilers take 1 to 2 seconds for the loop over
# panels, and 9 for a decomposition, an inverse and a product.


def quotient_by_panels(
    a: Array, y: Array, block: int | None = None, dot: Product = full_dot
) -> tuple[Array, Array]:
    """`cholesky_quotient` by panels of columns, padded with the unit matrix."""
    n, block = a.shape[-1], block or Thresholds.triangular_block
    side = -(-n // block) * block
    lead = [(0, 0)] * (a.ndim - 2)
    unit = jnp.eye(side, dtype=a.dtype).at[:n, :n].set(0)
    a = jnp.pad(a, [*lead, (0, side - n), (0, side - n)]) + unit
    y = jnp.pad(y, [*lead, (0, 0), (0, side - n)])
    both = jnp.concatenate([a, y], axis=-2)
    rows = jnp.arange(both.shape[-2])[:, None]
    panel = lambda x, k: jax.lax.dynamic_slice_in_dim(x, k * block, block, axis=-1)
    square = lambda x, k: jax.lax.dynamic_slice_in_dim(x, k * block, block, axis=-2)

    def one_panel(k: Array, done: Array) -> Array:
        def subtract(j: Array, rest: Array) -> Array:
            before = panel(done, j)
            return rest - dot(before, square(before, k).mT)

        rest = jax.lax.fori_loop(0, k, subtract, panel(both, k))
        inverse = inverse_lower(cholesky(square(rest, k)), dot)
        new = jnp.where(rows >= k * block, dot(rest, inverse.mT), 0)
        return jax.lax.dynamic_update_slice_in_dim(done, new, k * block, axis=-1)

    start = vary_like(jnp.zeros_like(both), both)
    both = jax.lax.fori_loop(0, side // block, one_panel, start)
    return jnp.tril(both[..., :n, :n]), both[..., side:, :n]
