"""Bases that start at the first gradient and take a step at every other one."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from optax_matrix._surroundings.keeping import kept
from optax_matrix.linalg.random import folded, seeded
from optax_matrix.linalg.scale import is_some
from optax_matrix.transforms.low_rank._basis import lacks_basis
from optax_matrix.transforms.low_rank._renewal import (
    BasisState,
    Find,
    new_vectors,
    numbers_of,
)
from optax_matrix.transforms.turns import any_of


def next_bases(
    step: Callable[..., jax.Array],
    gradient: Any,
    vectors: Any,
    *trees: Any,
    first: Find,
    seed: int = 0,
) -> Any:
    """The bases of this update: a step from the last ones, or the first ones.

    A matrix gets its first basis with its first gradient that is finite and not zero.
    Matrices that keep their state keep their basis.

    Args:
        step: Function from the arrays of one stack, of the gradient, the last basis
            and the other trees, to the new basis.
        gradient: Per stack the gradient, ``(..., m, n)``, its projected side the rows.
        vectors: Per stack the last basis, ``(..., m, r)``; zeros before the first one.
        *trees: Trees like these, for ``step``.
        first: Function from a `Subspace` to a first basis, such as ``refresh`` of
            `svd_basis`. It runs under a condition, for all stacks at once.
        seed: Seed of its random numbers.
    """
    leaves, structure = jax.tree.flatten(gradient)
    last, *others = map(structure.flatten_up_to, (vectors, *trees))
    start = jax.random.fold_in(seeded(seed), 0)
    keys = [folded(start, i) for i in numbers_of(gradient)]
    lacks = [lacks_basis(x, u) for x, u in zip(leaves, last, strict=True)]

    def begun() -> list:
        stacks = zip(leaves, last, keys, lacks, strict=True)
        of = lambda x, u, *rest: new_vectors(first, x, BasisState(u, None), *rest)
        return [of(*stack) for stack in stacks]

    firsts = jax.lax.cond(any_of(lacks), begun, lambda: last)

    def one(x: jax.Array, u: jax.Array, first: jax.Array, *rest: Any) -> jax.Array:
        # At the first update there is no basis to step from. The axes take its place,
        # and the step is discarded: a condition would wait for the host.
        known, axes = is_some(u), jnp.eye(*u.shape[-2:], dtype=u.dtype)
        return jnp.where(known, step(x, jnp.where(known, u, axes), *rest), first)

    new = [one(*stack) for stack in zip(leaves, last, firsts, *others, strict=True)]
    return kept(structure.unflatten(new), vectors)
