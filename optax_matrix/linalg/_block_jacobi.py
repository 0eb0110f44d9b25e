"""Eigenvectors by one-sided Jacobi rotations of blocks, for TPU."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from optax_matrix._mesh import unsplit, vary_like
from optax_matrix._platforms import by_platform, can_loop
from optax_matrix._thresholds import Thresholds
from optax_matrix.linalg import lapack
from optax_matrix.linalg.products import full_dot
from optax_matrix.linalg.scale import inverse
from optax_matrix.linalg.spectral_norms import norm_bound

# Six to nine sweeps sufficed for every matrix tried.
_MAX_SWEEPS = 20


def eigh(
    a: Float[Array, "*batch n n"],
) -> tuple[Float[Array, "*batch n"], Float[Array, "*batch n n"]]:
    """Ascending eigenvalues and eigenvectors of symmetric matrices of moderate size.

    On a TPU, for large sides, by `eigh_by_blocks`.
    """
    large = a.shape[-1] > 2 * Thresholds.jacobi_block
    loops = large and can_loop(a)
    return by_platform(lapack.eigh, a, tpu=eigh_by_blocks if loops else None)


class _State(NamedTuple):
    sweeps: Array
    columns: Array
    cosine: Array


def eigh_by_blocks(
    a: Float[Array, "*batch n n"], block: int | None = None
) -> tuple[Float[Array, "*batch n"], Float[Array, "*batch n n"]]:
    r"""`eigh` in one loop with a small body: Hestenes' one-sided Jacobi, by blocks.

    The columns of :math:`X = A + s I`, positive definite for a large shift s, are made
    orthogonal by rotations: then :math:`X = V \Lambda` with the eigenvectors V. A round
    takes the columns in pairs of blocks :math:`P` and replaces each pair by :math:`P Q`
    with the eigenvectors Q of :math:`P^\top P`; in a sweep every block meets every
    other once. Matrices that are not finite give NaN.
    """
    n = a.shape[-1]
    # One-sided rotations find the eigenvectors of X'X, in which eigenvalues of opposite
    # sign coincide. Shifted, all are positive and X is well-conditioned: at most 5.
    bound = norm_bound(a)
    shift = 1.5 * jnp.where(bound == 0, 1, bound)
    x = a + shift * jnp.eye(n, dtype=a.dtype)
    x = _orthogonal_columns(x, block or Thresholds.jacobi_block)
    v = x * inverse(jnp.sqrt(jnp.sum(x * x, axis=-2, keepdims=True)))
    # A Newton-Schulz step removes the rounding that the rotations left in V.
    v = 1.5 * v - 0.5 * full_dot(v, full_dot(v.mT, v))
    w = jnp.sum(v * full_dot(a, v), axis=-2)
    order = unsplit(jnp.argsort(w, axis=-1))
    v = jnp.take_along_axis(v, order[..., None, :], axis=-1)
    finite = jnp.all(jnp.isfinite(a), axis=(-2, -1), keepdims=True)
    w = jnp.where(finite[..., 0], jnp.take_along_axis(w, order, axis=-1), jnp.nan)
    return w, jnp.where(finite, v, jnp.nan)


def _orthogonal_columns(x: Array, block: int) -> Array:
    """Rotate independent columns until they are orthogonal; zero columns are last."""
    m, n = x.shape[-2:]
    batch = x.shape[:-2]
    blocks = 2 * -(-n // (2 * block))
    rounds = jnp.asarray(_tournament(blocks))
    x = jnp.pad(x, [*[(0, 0)] * (x.ndim - 1), (0, blocks * block - n)])
    x = jnp.moveaxis(x.reshape(math.prod(batch), m, blocks, block), 2, 0)
    limit = 4 * float(jnp.finfo(x.dtype).eps) * m**0.5

    def one_round(state: tuple[Array, Array], order: Array):
        x, cosine = state
        pairs = x[order].reshape(blocks // 2, 2, *x.shape[1:])
        pairs = jnp.concatenate([pairs[:, 0], pairs[:, 1]], axis=-1)
        gram = full_dot(pairs.mT, pairs)
        _, q = jnp.linalg.eigh(gram, symmetrize_input=False)
        # Descending, so that the zero columns of padding move to the end.
        pairs = full_dot(pairs, jnp.flip(q, axis=-1))
        halves = jnp.stack([pairs[..., :block], pairs[..., block:]], axis=1)
        x = x.at[order].set(halves.reshape(x.shape))
        return (x, jnp.maximum(cosine, _largest_cosine(gram))), None

    def sweep(state: _State) -> _State:
        start = state.columns, vary_like(jnp.zeros((), x.dtype), x)
        (columns, cosine), _ = jax.lax.scan(one_round, start, rounds)
        return _State(state.sweeps + 1, columns, cosine)

    def unfinished(state: _State) -> Array:
        return (state.sweeps < _MAX_SWEEPS) & (state.cosine > limit)

    start = _State(jnp.zeros((), jnp.int32), x, jnp.asarray(jnp.inf, x.dtype))
    end = jax.lax.while_loop(unfinished, sweep, vary_like(start, x))
    x = jnp.moveaxis(end.columns, 0, 2).reshape(*batch, m, blocks * block)
    return x[..., :n]


def _largest_cosine(gram: Array) -> Array:
    """The largest cosine of an angle between two of the columns."""
    scale = jax.lax.rsqrt(jnp.diagonal(gram, axis1=-2, axis2=-1))
    scale = jnp.where(jnp.isfinite(scale), scale, 0)
    cosines = jnp.abs(gram * scale[..., :, None] * scale[..., None, :])
    # A matrix with NaN must not end the loop for the others.
    cosines = jnp.where(jnp.isfinite(cosines), cosines, 0)
    return jnp.max(jnp.where(jnp.eye(gram.shape[-1], dtype=bool), 0, cosines))


def _tournament(blocks: int) -> np.ndarray:
    """The order of the blocks in each round; neighbors are pairs, the lower first.

    A round-robin: all but the first move along a circle, so that every two meet once.
    """
    ring, rounds = list(range(blocks)), []
    for _ in range(blocks - 1):
        pairs = zip(ring[: blocks // 2], reversed(ring), strict=False)
        rounds.append([x for pair in pairs for x in sorted(pair)])
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return np.array(rounds)
