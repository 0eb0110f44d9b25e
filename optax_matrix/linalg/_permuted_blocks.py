r"""Stochastic primitives: orthogonal matrices made of a permutation and small blocks.

.. math::
    R = \Psi^\top \mathrm{diag}(G_1, \dots, G_k, I) \Psi

where :math:`\Psi` is a permutation of the n dimensions and the G are k orthogonal
blocks of side b. With k = 1 this is POET's fully stochastic primitive, whose index set
is the first b entries of the permutation. With :math:`k = \lceil n / b \rceil` it is
the block stochastic primitive. Both are applied to matrices by gathers and products of
blocks; no ``n x n`` matrix is formed.

A matrix ``(..., m, n)`` has the sides ``"out"`` (rows) and ``"in"`` (columns). Blocks
and permutations are given as dicts by side; a side that is absent is left as it is.
"""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from optax_matrix.linalg._orthogonal import inverse_of_orthogonal
from optax_matrix.linalg._permutations import permute, unpermute
from optax_matrix.linalg.products import full_dot
from optax_matrix.linalg.scale import as_work


def block_grid(n: int, block: Any, variant: str) -> tuple[int, int]:
    """The number and the side of the blocks for a dimension.

    Args:
        n: The dimension.
        block: Side of a block: an int, or a float for a fraction of n, rounded down but
            at least 2.
        variant: ``"full"`` for one block, ``"block"`` for as many as it takes to cover
        n.

    Returns:
        ``(k, b)``, with b at most n. For ``"block"`` the last block may extend beyond
        n; that part of it is the identity (`rotate_columns`).

    Examples:
        >>> block_grid(100, 32, "block"), block_grid(100, 0.5, "full")
        ((4, 32), (1, 50))
    """
    b = max(int(block * n), 2) if isinstance(block, float) else int(block)
    b = min(b, n)
    return (1 if variant == "full" else -(-n // b)), b


def free_entries(n: int, k: int, b: int) -> np.ndarray:
    """Which entries of the triangles of a grid of blocks lie within a dimension.

    Args:
        n: The dimension.
        k: Number of blocks.
        b: Side of the blocks.

    Returns:
        Booleans ``(k, b (b - 1) / 2)``: True for the trainable parameters, False for
        entries beyond n, which must be zero.

    Examples:
        >>> free_entries(5, 2, 3).tolist()
        [[True, True, True], [True, False, False]]
    """
    _, cols = np.triu_indices(b, 1)
    return cols + b * np.arange(k)[:, None] < n


def rotate_columns(
    x: Float[Array, "*batch m n"], g: Float[Array, "*batch k b b"]
) -> Float[Array, "*batch m n"]:
    r"""Apply blocks to every row as a vector: :math:`X \, \mathrm{diag}(G_i, I)^\top`.

    Args:
        x: Matrices ``(..., m, n)``.
        g: Blocks ``(..., k, b, b)``. Columns beyond them stay as they are; of a block
            that extends beyond n only the leading part acts.

    Returns:
        Matrices ``(..., m, n)``.

    Examples:
        >>> turn = jnp.array([[[0.0, 1.0], [-1.0, 0.0]]])
        >>> rotate_columns(jnp.array([[1.0, 2.0, 3.0]]), turn).tolist()
        [[2.0, -1.0, 3.0]]
    """
    (*batch, m, n), (k, b) = x.shape, g.shape[-3:-1]
    head, tail = x[..., : k * b], x[..., k * b :]
    widths = [(0, 0)] * (x.ndim - 1) + [(0, k * b - head.shape[-1])]
    blocks = jnp.pad(head, widths).reshape(*batch, m, k, b)
    turned = full_dot(jnp.moveaxis(blocks, -2, -3), g.mT)  # (..., k, m, b)
    turned = jnp.moveaxis(turned, -3, -2).reshape(*batch, m, k * b)
    return jnp.concatenate([turned[..., :n], tail], axis=-1)


def rotate_rows(
    x: Float[Array, "*batch m n"], g: Float[Array, "*batch k b b"]
) -> Float[Array, "*batch m n"]:
    r"""Apply blocks to every column as a vector: :math:`\mathrm{diag}(G_i, I) X`.

    Args:
        x: Matrices ``(..., m, n)``.
        g: Blocks ``(..., k, b, b)``, as in `rotate_columns`.

    Returns:
        Matrices ``(..., m, n)``.
    """
    (*batch, m, n), (k, b) = x.shape, g.shape[-3:-1]
    head, tail = x[..., : k * b, :], x[..., k * b :, :]
    widths = [(0, 0)] * (x.ndim - 2) + [(0, k * b - head.shape[-2]), (0, 0)]
    turned = full_dot(g, jnp.pad(head, widths).reshape(*batch, k, b, n))
    turned = turned.reshape(*batch, k * b, n)[..., :m, :]
    return jnp.concatenate([turned, tail], axis=-2)


def rotate_sides(
    x: Float[Array, "*batch m n"], blocks: Mapping[str, Array]
) -> Float[Array, "*batch m n"]:
    """Apply blocks to both sides, or to those for which there are blocks.

    Args:
        x: Matrices ``(..., m, n)``.
        blocks: Blocks ``(..., k, b, b)`` for ``"out"`` and ``"in"``.

    Returns:
        Matrices ``(..., m, n)``.
    """
    if "in" in blocks:
        x = rotate_columns(x, blocks["in"])
    return rotate_rows(x, blocks["out"]) if "out" in blocks else x


def materialize(
    frame: Float[Array, "*batch m n"],
    blocks: Mapping[str, Array],
    perms: Mapping[str, Array],
) -> Float[Array, "*batch m n"]:
    r"""Apply primitives to both sides of matrices that are stored permuted.

    .. math::
        W = \Psi_{out}^\top \mathrm{diag}(G_{out}) \, F \,
            \mathrm{diag}(G_{in})^\top \Psi_{in}

    In POET's notation, where matrices are in x out and :math:`W = R W_0 P`, the blocks
    ``"in"`` are those of R and the blocks ``"out"`` are those of :math:`P^\top`.

    Args:
        frame: :math:`F = \Psi_{out} W_0 \Psi_{in}^\top`, which is
            ``permute(w_0, perms)``, ``(..., m, n)``.
        blocks: Blocks ``(..., k, b, b)`` for ``"out"`` and ``"in"``.
        perms: Permutations ``(..., m)`` for ``"out"``, ``(..., n)`` for ``"in"``.

    Returns:
        Matrices ``(..., m, n)``, in the frame's dtype.
    """
    x = rotate_sides(as_work(frame), blocks)
    return unpermute(x, perms).astype(frame.dtype)


def recover_frame(
    w: Float[Array, "*batch m n"],
    blocks: Mapping[str, Array],
    perms: Mapping[str, Array],
) -> Float[Array, "*batch m n"]:
    """Invert `materialize` in its first argument.

    Blocks are inverted by `inverse_of_orthogonal`. Their transposes would differ from
    the inverses by the orthogonality error of the blocks.

    Args:
        w: Matrices ``(..., m, n)``.
        blocks: As in `materialize`.
        perms: As in `materialize`.

    Returns:
        The frame, ``(..., m, n)``, in the dtype of `w`.
    """
    inverses = {
        side: inverse_of_orthogonal(g.astype(as_work(g).dtype))
        for side, g in blocks.items()
    }
    return rotate_sides(permute(as_work(w), perms), inverses).astype(w.dtype)
