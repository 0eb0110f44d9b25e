"""Measures of rows and columns: no decompositions, a product at most."""

from typing import Literal

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from optax_matrix._arguments import checked
from optax_matrix.linalg.products import full_dot
from optax_matrix.linalg.scale import as_work, column_norms, safe_divide, unit_peak


def orthogonality_error(x: ArrayLike) -> jax.Array:
    r"""Distance of the shorter side from orthonormality.

    .. math::
        e_{orth} = \|X^\top X - I\|_F / \|I\|_F

    with :math:`X X^\top` for matrices with fewer rows than columns. Costs one product
    of the matrix and its transpose.

    Args:
        x: Matrices ``(..., m, n)``.

    Returns:
        One number per matrix, at least float32; 1 for a zero matrix.

    Raises:
        ValueError: If ``x`` has fewer than two axes or no floating dtype.

    Examples:
        >>> import jax.numpy as jnp
        >>> float(orthogonality_error(jnp.array([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]])))
        2.12...

    References:
        POET, Section 5 (approximation error), Figures 8 and 21 to 23.
    """
    x = as_work(jnp.asarray(x))
    x = x.mT if x.shape[-2] > x.shape[-1] else x
    gram = full_dot(x, x.mT)
    error = gram - jnp.broadcast_to(jnp.eye(x.shape[-2], dtype=x.dtype), gram.shape)
    return jnp.sqrt(jnp.mean(jnp.sum(error * error, axis=-1), axis=-1))


@checked
def norm_spread(x: ArrayLike, *, side: Literal["out", "in"] = "out") -> jax.Array:
    r"""The largest norm of a row (or column) divided by the smallest one.

    .. math::
        \max_i \|x_i\|_2 / \min_i \|x_i\|_2

    Costs one pass over the entries.

    Args:
        x: Matrices ``(..., m, n)``.
        side: ``"out"`` for rows, ``"in"`` for columns.

    Returns:
        One number per matrix, at least 1; infinity if a row (column) is zero.

    Raises:
        ValueError: If ``side`` is none of these; if ``x`` has fewer than two axes or no
            floating dtype.

    Examples:
        >>> import jax.numpy as jnp
        >>> x = jnp.array([[3.0, 4.0], [0.0, 1.0]])
        >>> float(norm_spread(x)), round(float(norm_spread(x, side="in")), 3)
        (5.0, 1.374)

    References:
        MuonEq, Section 3.2 (marginal scale mismatch); ARO, Section 5.1 (Sinkhorn).
    """
    x, _ = unit_peak(as_work(jnp.asarray(x)))
    norms = column_norms(x.mT if side == "out" else x)
    smallest = jnp.min(norms, axis=-1)
    ratio = jnp.max(norms, axis=-1) / jnp.where(smallest == 0, 1, smallest)
    return jnp.where(smallest == 0, jnp.inf, ratio)


def hyperspherical_energy(w: ArrayLike) -> jax.Array:
    r"""How unevenly neurons are spread over directions: Coulomb's energy on a sphere.

    .. math::
        \mathrm{HE}(W) = \sum_{i \neq j} \|\hat w_i - \hat w_j\|^{-1},
        \qquad \hat w_i = w_i / \|w_i\|

    Every pair counts twice. Neurons are rows. Costs one ``m x n`` by ``n x m`` product.
    That product does not resolve distances below :math:`2 \sqrt{\epsilon}` (7e-4 in
    float32), so neurons that are closer count as being that far apart.

    Args:
        w: Matrices ``(..., m, n)``, one output neuron per row.

    Returns:
        One number per matrix, at least float32. Zero rows have no direction and count
        for nothing, so a zero matrix gives 0.

    Raises:
        ValueError: If ``w`` has fewer than two axes or no floating dtype.

    Examples:
        >>> import jax.numpy as jnp
        >>> float(hyperspherical_energy(jnp.array([[5.0, 0.0], [-1.0, 0.0]])))
        1.0

    References:
        POET, Eq. 1 and Appendix B, where neurons are columns.
    """
    x, _ = unit_peak(as_work(jnp.asarray(w)))
    norms = column_norms(x.mT)
    unit = safe_divide(x, norms[..., None])
    m, eps = x.shape[-2], float(jnp.finfo(x.dtype).eps)
    squares = jnp.maximum(2 - 2 * full_dot(unit, unit.mT), 4 * eps)
    live = norms > 0
    others = jnp.broadcast_to(~jnp.eye(m, dtype=bool), squares.shape)
    pairs = live[..., :, None] & live[..., None, :] & others
    return jnp.sum(jnp.where(pairs, jax.lax.rsqrt(squares), 0), axis=(-2, -1))
