"""When matrices are merged, and the permutations that are drawn then."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from optax_matrix._mesh import vary_like
from optax_matrix.transforms.stochastic_primitives._limit_skew_norm import reached
from optax_matrix.transforms.stochastic_primitives._moment_reset import where_due
from optax_matrix.transforms.stochastic_primitives._orthogonal_primitives import (
    Primitives,
)


@dataclasses.dataclass(frozen=True)
class Merges:
    """The merges of a tree of stacks.

    Attributes:
        primitives: The primitives.
        interval: Number of updates between merges of all matrices; None for none.
        merge_at: Norm of Q at which a matrix is merged by itself; None for none.
        ids: Identities of the matrices, as in `spo`.
    """

    primitives: Primitives
    interval: int | None
    merge_at: Any
    ids: Any

    def due(self, count: Any, q: Any, params: Any) -> Any:
        """Which matrices to merge.

        Args:
            count: Number of updates, this one included.
            q: Per leaf and side the new triangles.
            params: The parameters.

        Returns:
            Booleans ``(...)`` per leaf; None if no matrix is ever merged.
        """
        if self.interval is None and self.merge_at is None:
            return None
        every = self.every(count)

        def one(w, sides):
            due = jnp.broadcast_to(every, w.shape[:-2])
            if self.merge_at is None:
                return due
            return due | reached(sides, self.merge_at)

        return jax.tree.map(one, params, q)

    def every(self, count: Any) -> Any:
        """Whether the interval merges all matrices.

        Args:
            count: Number of updates, this one included.

        Returns:
            A boolean that is equal on all devices; False without an interval.
        """
        return self.interval is not None and count % self.interval == 0

    def draw(self, merges: Any, params: Any) -> Any:
        """The permutations of all matrices.

        Args:
            merges: Per leaf the number of merges of each matrix, ``(...)``.
            params: The parameters.

        Returns:
            Per leaf and side the permutations.
        """
        return jax.tree.map(self.primitives.draw, merges, params, self._ids_of(params))

    def redraw(self, due: Any, merges: Any, params: Any, perms: Any) -> Any:
        """The permutations, newly drawn for the matrices that are due.

        Args:
            due: Per leaf the matrices to draw for, ``(...)``.
            merges: As in `draw`, these merges included.
            params: The parameters.
            perms: The old permutations.

        Returns:
            Per leaf and side the permutations.
        """
        pick = lambda due, new, old: {s: where_due(due, new[s], old[s]) for s in old}
        new = lambda: jax.tree.map(pick, due, self.draw(merges, params), perms)
        return jax.lax.cond(some(due), lambda: vary_like(new(), perms), lambda: perms)

    def _ids_of(self, params: Any) -> Any:
        if self.ids is None:
            return jax.tree.map(lambda p: jnp.zeros((*p.shape[:-2], 1)), params)
        return {name: self.ids[name] for name in params}


def some(due: Any) -> jax.Array:
    """Whether any matrix of a tree is due.

    Args:
        due: Booleans ``(...)`` per leaf.

    Returns:
        A boolean.
    """
    each = map(jnp.any, jax.tree.leaves(due))
    return functools.reduce(jnp.logical_or, each, jnp.zeros((), bool))
