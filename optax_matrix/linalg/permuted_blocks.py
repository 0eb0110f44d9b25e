r"""Stochastic primitives: orthogonal matrices made of a permutation and small blocks.

.. math::
    R = \Psi^\top \mathrm{diag}(G_1, \dots, G_k, I) \Psi

where :math:`\Psi` is a permutation of the n dimensions and the G are k orthogonal
blocks of side b. With k = 1 this is POET's fully stochastic primitive; its index set is
the first b entries of the permutation. With :math:`k = \lceil n / b \rceil` it is
the block stochastic primitive. Both are applied to matrices by gathers and products of
blocks; no ``n x n`` matrix is formed.

A matrix ``(..., m, n)`` has the sides ``"out"`` (rows) and ``"in"`` (columns). Blocks
and permutations are given as dicts by side; an absent side does not change.
"""

from collections.abc import Mapping
from functools import partial

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from optax_matrix._mesh import unsplit
from optax_matrix.linalg._orthogonal import inverse_of_orthogonal
from optax_matrix.linalg.precision import roots
from optax_matrix.linalg.random import folded, seeded
from optax_matrix.linalg.scale import as_work


def draw_permutations(
    ids: ArrayLike, n: int, *numbers: ArrayLike
) -> Int[Array, "*batch {n}"]:
    """A random permutation of 0 to n - 1 for each matrix, int32 ``(..., n)``.

    ``ids`` are the identities of the matrices, uint32 ``(..., k)``; ``numbers`` are
    what else determines the draw (seed, side, merge), each an integer or ``(...)``.
    """

    def one(identity: Array, *numbers: Array) -> Array:
        key = seeded(0)
        for number in numbers:
            key = jax.random.fold_in(key, number)
        key = folded(key, identity)
        return jax.random.permutation(key, jnp.arange(n, dtype=jnp.int32))

    signature = ",".join(["(k)", *["()"] * len(numbers)]) + "->(n)"
    return jnp.vectorize(one, signature=signature)(
        jnp.asarray(ids, jnp.uint32), *(jnp.asarray(x, jnp.uint32) for x in numbers)
    )


@partial(jax.jit, inline=True)
def permute(
    x: Float[Array, "*batch m n"], perms: Mapping[str, Array]
) -> Float[Array, "*batch m n"]:
    """Reorder rows and columns: ``y[i, j] = x[rows[i], columns[j]]``."""
    if "out" in perms:
        x = _take_rows(x, perms["out"])
    if "in" in perms:
        x = _take_rows(x.mT, perms["in"]).mT
    return x


def unpermute(
    x: Float[Array, "*batch m n"], perms: Mapping[str, Array]
) -> Float[Array, "*batch m n"]:
    """Invert `permute`."""
    return permute(x, {side: jnp.argsort(p, axis=-1) for side, p in perms.items()})


def _take_rows(x: Array, rows: Array) -> Array:
    def one(x, rows):
        # Indices of a permutation are unique, so that the transpose is a gather, too.
        return x.at[rows].get(unique_indices=True, mode="promise_in_bounds")

    return jnp.vectorize(one, signature="(m,n),(m)->(m,n)")(x, unsplit(rows))


def rotate_columns(
    x: Float[Array, "*batch m n"],
    g: Float[Array, "*batch k b b"],
) -> Float[Array, "*batch m n"]:
    r"""Apply blocks to the rows: :math:`X \, \mathrm{diag}(G_i, I)^\top`."""
    (*batch, m, n), (k, b) = x.shape, g.shape[-3:-1]
    head, tail = x[..., : k * b], x[..., k * b :]
    # The last block is padded with zeros, and its results for them are cut off.
    widths = [(0, 0)] * (x.ndim - 1) + [(0, k * b - head.shape[-1])]
    blocks = jnp.pad(head, widths).reshape(*batch, m, k, b)
    rotated = roots(jnp.moveaxis(blocks, -2, -3), g.mT)  # (..., k, m, b)
    rotated = jnp.moveaxis(rotated, -3, -2).reshape(*batch, m, k * b)
    return jnp.concatenate([rotated[..., :n], tail], axis=-1)


def rotate_rows(
    x: Float[Array, "*batch m n"],
    g: Float[Array, "*batch k b b"],
) -> Float[Array, "*batch m n"]:
    r"""Apply blocks to the columns: :math:`\mathrm{diag}(G_i, I) X`."""
    (*batch, m, n), (k, b) = x.shape, g.shape[-3:-1]
    head, tail = x[..., : k * b, :], x[..., k * b :, :]
    widths = [(0, 0)] * (x.ndim - 2) + [(0, k * b - head.shape[-2]), (0, 0)]
    rotated = roots(g, jnp.pad(head, widths).reshape(*batch, k, b, n))
    rotated = rotated.reshape(*batch, k * b, n)[..., :m, :]
    return jnp.concatenate([rotated, tail], axis=-2)


@partial(jax.jit, inline=True)
def rotate_sides(
    x: Float[Array, "*batch m n"],
    blocks: Mapping[str, Array],
) -> Float[Array, "*batch m n"]:
    """Apply blocks to both sides, or to those for which there are blocks."""
    if "in" in blocks:
        x = rotate_columns(x, blocks["in"])
    return rotate_rows(x, blocks["out"]) if "out" in blocks else x


@partial(jax.jit, inline=True)
def materialize(
    frame: Float[Array, "*batch m n"],
    blocks: Mapping[str, Array],
    perms: Mapping[str, Array],
) -> Float[Array, "*batch m n"]:
    r"""Apply primitives to both sides of matrices that are stored permuted.

    .. math::
        W = \Psi_{out}^\top \mathrm{diag}(G_{out}) \, F \,
            \mathrm{diag}(G_{in})^\top \Psi_{in}, \qquad
        F = \Psi_{out} W_0 \Psi_{in}^\top

    In POET's notation, where matrices are in x out and :math:`W = R W_0 P`, the blocks
    ``"in"`` are those of R and the blocks ``"out"`` are those of :math:`P^\top`.
    """
    x = rotate_sides(as_work(frame), blocks)
    return unpermute(x, perms).astype(frame.dtype)


@partial(jax.jit, inline=True)
def recover_frame(
    w: Float[Array, "*batch m n"],
    blocks: Mapping[str, Array],
    perms: Mapping[str, Array],
) -> Float[Array, "*batch m n"]:
    """Invert `materialize` in its first argument."""
    # Transposes would differ from the inverses by the blocks' error of orthogonality.
    inverses = {
        side: inverse_of_orthogonal(g.astype(as_work(g).dtype))
        for side, g in blocks.items()
    }
    return rotate_sides(permute(as_work(w), perms), inverses).astype(w.dtype)
