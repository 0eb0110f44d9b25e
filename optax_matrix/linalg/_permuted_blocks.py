r"""Stochastic primitives: orthogonal matrices made of a permutation and small blocks.

.. math::
    R = \Psi^\top \mathrm{diag}(G_1, \dots, G_k, I) \Psi

with a permutation :math:`\Psi` of the n dimensions and k orthogonal blocks of side b.
With k = 1 it is POET's fully stochastic primitive (the first b places of the
permutation are its index set), with :math:`k = \lceil n / b \rceil` its block
stochastic one. They act on matrices by gathers and products of blocks: no ``n x n``
matrix is ever formed.

A matrix ``(..., m, n)`` has the sides ``"out"`` (rows) and ``"in"`` (columns); what
belongs to a side is given as a dict, and a side that is absent stays as it is.
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
    """Number and side of the blocks for a dimension.

    Args:
        n: The dimension.
        block: Side of a block: an int, or a float for that fraction of n, rounded down
            (but not below 2).
        variant: ``"full"`` for one block, ``"block"`` for as many as cover n.

    Returns:
        ``(k, b)``, with b at most n. For ``"block"`` the last block may stick out over
        n; the part that does is the identity (`rotate_columns`).

    Examples:
        >>> block_grid(100, 32, "block"), block_grid(100, 0.5, "full")
        ((4, 32), (1, 50))
    """
    b = max(int(block * n), 2) if isinstance(block, float) else int(block)
    b = min(b, n)
    return (1 if variant == "full" else -(-n // b)), b


def free_entries(n: int, k: int, b: int) -> np.ndarray:
    """Which entries of the triangles of a grid of blocks act within a dimension.

    Args:
        n: The dimension.
        k: Number of blocks.
        b: Side of the blocks.

    Returns:
        Booleans ``(k, b (b - 1) / 2)``: False for what sticks out over n, which must be
        zero. Their number is that of trainable parameters.

    Examples:
        >>> free_entries(5, 2, 3).tolist()
        [[True, True, True], [True, False, False]]
    """
    _, cols = np.triu_indices(b, 1)
    return cols + b * np.arange(k)[:, None] < n


def rotate_columns(
    x: Float[Array, "*batch m n"], g: Float[Array, "*batch k b b"]
) -> Float[Array, "*batch m n"]:
    r"""Applies blocks to the rows as vectors: :math:`X \, \mathrm{diag}(G_i, I)^\top`.

    Args:
        x: Matrices ``(..., m, n)``.
        g: Blocks ``(..., k, b, b)``. What lies beyond them stays as it is; where they
            stick out over n, only their leading part acts.

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
    r"""Applies blocks to the columns as vectors: :math:`\mathrm{diag}(G_i, I) X`.

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
    """Applies blocks to both sides, or to those that have any.

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
    r"""Applies primitives to both sides of matrices that are held permuted.

    .. math::
        W = \Psi_{out}^\top \mathrm{diag}(G_{out}) \, F \,
            \mathrm{diag}(G_{in})^\top \Psi_{in}

    In POET's notation, where matrices are in x out and :math:`W = R W_0 P`, the blocks
    ``"in"`` are those of R, the blocks ``"out"`` those of :math:`P^\top`.

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
    """Inverts `materialize` in its first argument.

    The inverse of every block is `inverse_of_orthogonal`: that of the blocks as they
    are, and not their transpose, from which they differ by their orthogonality error.

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
