"""Measures of rows, columns and rotations: no decompositions, a product at most."""

from typing import Literal

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from optax_matrix._arguments import Seed, checked
from optax_matrix.linalg import orthogonality_error as error_of_rows
from optax_matrix.linalg.products import full_dot, times
from optax_matrix.linalg.random import seeded
from optax_matrix.linalg.scale import (
    as_work,
    column_norms,
    safe_divide,
    safe_root,
    unit_peak,
)


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
        POET, Section 5 (approximation error), Figures 8 and 21 to 23. It is
        `linalg.orthogonality_error` of the shorter side.
    """
    x = as_work(jnp.asarray(x))
    return error_of_rows(x.mT if x.shape[-2] > x.shape[-1] else x)


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


@checked
def probe(r: ArrayLike, v: ArrayLike | None = None, *, seed: Seed = 0) -> jax.Array:
    r"""Vector probing: the cosine of the angle by which matrices turn a vector.

    .. math::
        \cos(v, R v) = v^\top R v / (\|v\| \|R v\|)

    Costs one product of the matrix and a vector.

    Args:
        r: Square matrices ``(..., m, m)``, usually orthogonal.
        v: Vectors ``(..., m)``, or one ``(m,)`` for all; None for a Gaussian vector
            that depends on ``seed`` and m alone, so that it is the same at every step.
        seed: Seed of that vector.

    Returns:
        One number per matrix from -1 to 1; 0 where v or Rv is zero.

    Raises:
        ValueError: If ``r`` is not square or ``v`` has another length; if ``r`` has
            fewer than two axes or no floating dtype.

    Examples:
        >>> import jax.numpy as jnp
        >>> quarter = jnp.array([[0.0, -1.0], [1.0, 0.0]])
        >>> float(probe(quarter)), float(probe(-quarter @ quarter))
        (0.0, 1.0)

    References:
        POET, Appendix A.1 (a constant, randomly drawn vector) and G, Figures 2, 9, 10.
    """
    r = _square(r)
    m = r.shape[-1]
    given = jax.random.normal(seeded(seed), (m,), jnp.float32) if v is None else v
    v = jnp.asarray(given, r.dtype)
    if v.shape[-1:] != (m,):
        raise ValueError(
            f"`v` must hold vectors of length {m}, as `r` of shape {r.shape} takes "
            f"them, got shape {v.shape}; pass another v, or None for a random one."
        )
    v = jnp.broadcast_to(_unit(v), r.shape[:-1])
    return jnp.sum(v * _unit(times(unit_peak(r)[0], v)), axis=-1)


def mean_probe(r: ArrayLike) -> jax.Array:
    r"""The mean of :math:`v^\top R v` over all unit vectors.

    .. math::
        \mathrm{E}\,[v^\top R v] = \mathrm{Tr}(R) / m

    For orthogonal R this is the mean of `probe`. Costs one pass over the diagonal.

    Args:
        r: Square matrices ``(..., m, m)``.

    Returns:
        One number per matrix, at least float32.

    Raises:
        ValueError: If ``r`` is not square; if it has fewer than two axes or no floating
            dtype.

    Examples:
        >>> import jax.numpy as jnp
        >>> float(mean_probe(jnp.diag(jnp.array([1.0, 1.0, -1.0, 1.0]))))
        0.5

    References:
        POET, Appendix A.1, Eq. 9, and G, Figures 11 and 12.
    """
    return jnp.mean(jnp.diagonal(_square(r), axis1=-2, axis2=-1), axis=-1)


def coverage(before: ArrayLike, after: ArrayLike) -> jax.Array:
    """The share of the entries of matrices that updates have changed.

    Updates that round to nothing do not count. Costs one pass over the entries.

    Args:
        before: Matrices ``(..., m, n)``.
        after: The matrices after one update or more.

    Returns:
        One number per matrix from 0 to 1.

    Raises:
        ValueError: If the shapes differ; if ``before`` has fewer than two axes or no
            floating dtype.

    Examples:
        >>> import jax.numpy as jnp
        >>> w = jnp.ones((2, 3))
        >>> float(coverage(w, w.at[0].add(1.0)))
        0.5

    References:
        POET, Appendix H, Figures 13 and 14 (which count updates of a side; see
        `updates_per_entry`).
    """
    x, y = as_work(jnp.asarray(before)), as_work(jnp.asarray(after))
    if x.shape != y.shape:
        raise ValueError(
            f"`after` must have the shape {x.shape} of `before`, got {y.shape}; pass "
            "the same parameters at two steps."
        )
    return jnp.mean(x != y, axis=(-2, -1), dtype=x.dtype)


def updates_per_entry(r: ArrayLike | None, p: ArrayLike | None) -> jax.Array:
    """How many of the rotations of the two sides update each entry of a weight.

    R updates the entries whose input it turns, P those whose output it turns. Costs one
    pass over R and P.

    Args:
        r: Rotations R of the inputs, ``(..., n, n)``; None if that side does not turn.
        p: Rotations P of the outputs, ``(..., m, m)``; None if that side does not turn.

    Returns:
        Numbers 0, 1 or 2 for each entry, int32 ``(..., m, n)``. Where a side is None,
        it has length one.

    Raises:
        ValueError: If both are None, or one is not square.

    Examples:
        >>> import jax.numpy as jnp
        >>> turn = jnp.array([[0.0, 1.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
        >>> updates_per_entry(turn, jnp.eye(2)).tolist()
        [[1, 1, 0], [1, 1, 0]]

    References:
        POET, Appendix H, Figures 13 and 14: its sum over the updates of a run that
        merges after each one.
    """
    if r is None and p is None:
        raise ValueError(
            "`r` and `p` must not both be None; pass the rotations of a side at least."
        )
    by_input, by_output = _turned(r), _turned(p)
    return by_output[..., :, None] + by_input[..., None, :]


def _turned(r: ArrayLike | None) -> jax.Array:
    """Which basis vectors a rotation moves, as 0 and 1, ``(..., m)``."""
    if r is None:
        return jnp.zeros(1, jnp.int32)
    r = _square(r)
    eye = jnp.broadcast_to(jnp.eye(r.shape[-1], dtype=r.dtype), r.shape)
    moved = jnp.any(r != eye, axis=-1)
    return moved.astype(jnp.int32)


def _square(r: ArrayLike) -> jax.Array:
    r = as_work(jnp.asarray(r))
    if r.shape[-2] != r.shape[-1]:
        raise ValueError(
            f"`r` must be square matrices (..., m, m), got shape {r.shape}; pass "
            "rotations, not weights."
        )
    return r


def _unit(v: jax.Array) -> jax.Array:
    peak = jnp.max(jnp.abs(v), axis=-1, keepdims=True)
    v = safe_divide(v, peak)
    return safe_divide(v, safe_root(jnp.sum(v * v, axis=-1, keepdims=True)))
