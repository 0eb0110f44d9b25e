"""Random permutations of the rows and columns of matrices.

A matrix ``(..., m, n)`` has the sides ``"out"`` (rows) and ``"in"`` (columns).
Permutations are given as a dict by side; a side that is absent keeps its order.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from optax_matrix.linalg.random import folded, seeded


def draw_permutations(
    ids: ArrayLike, n: int, *numbers: ArrayLike
) -> Int[Array, "*batch {n}"]:
    """Draw a random permutation for each matrix.

    Args:
        ids: Identity of each matrix, uint32 ``(..., k)``, such as `stacks.Group.ids`.
        n: Length of the permutations.
        *numbers: What else determines the draw (seed, side, merge): integers, or
            arrays ``(...)`` with one for each matrix; may be traced.

    Returns:
        Permutations of 0 to n - 1, int32 ``(..., n)``.

    Examples:
        >>> draw_permutations(jnp.array([[7, 0]]), 4, 1).shape
        (1, 4)
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


def permute(
    x: Float[Array, "*batch m n"], perms: Mapping[str, Array]
) -> Float[Array, "*batch m n"]:
    """Reorder rows and columns: ``y[i, j] = x[rows[i], columns[j]]``.

    Args:
        x: Matrices ``(..., m, n)``.
        perms: Permutations ``(..., m)`` for ``"out"``, ``(..., n)`` for ``"in"``.

    Returns:
        Matrices ``(..., m, n)``.
    """
    if "out" in perms:
        x = _take_rows(x, perms["out"])
    if "in" in perms:
        x = _take_rows(x.mT, perms["in"]).mT
    return x


def unpermute(
    x: Float[Array, "*batch m n"], perms: Mapping[str, Array]
) -> Float[Array, "*batch m n"]:
    """Invert `permute`.

    Args:
        x: Matrices ``(..., m, n)``.
        perms: Permutations, as in `permute`.

    Returns:
        Matrices ``(..., m, n)``.
    """
    return permute(x, {side: jnp.argsort(p, axis=-1) for side, p in perms.items()})


def _take_rows(x: Array, rows: Array) -> Array:
    def one(x, rows):
        # Indices of a permutation are unique, so that the transpose is a gather, too.
        return x.at[rows].get(unique_indices=True, mode="promise_in_bounds")

    return jnp.vectorize(one, signature="(m,n),(m)->(m,n)")(x, rows)
