"""When matrices are merged, and what a merge renews: permutations and moments."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import GetAttrKey

from optax_matrix._mesh import vary_like
from optax_matrix._surroundings.layouts import identities_of
from optax_matrix.transforms.stochastic_primitives.primitives import Primitives
from optax_matrix.transforms.stochastic_primitives.skew_bound import reached
from optax_matrix.transforms.turns import any_of, select


@dataclasses.dataclass(frozen=True)
class Merges:
    """The merges of a tree of stacks: all at an ``interval``, each at a norm of Q."""

    primitives: Primitives
    interval: int | None
    merge_at: Any

    def due(self, count: Any, q: Any, params: Any) -> Any:
        """Which matrices to merge, ``(...)`` per leaf; None if none ever is."""
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
        """Whether the interval merges all matrices; equal on all devices."""
        return self.interval is not None and count % self.interval == 0

    def draw(self, merges: Any, params: Any) -> Any:
        """The permutations of all matrices after their numbers of merges."""
        none = lambda p: jnp.zeros((*p.shape[:-2], 1))
        ids = identities_of(params) or jax.tree.map(none, params)
        return jax.tree.map(self.primitives.draw, merges, params, ids)

    def redraw(
        self, decide: Callable, due: Any, merges: Any, params: Any, perms: Any
    ) -> Any:
        """The permutations, newly drawn for the matrices that are due."""
        pick = lambda due, new, old: {s: select(due, new[s], old[s]) for s in old}
        new = lambda: jax.tree.map(pick, due, self.draw(merges, params), perms)
        return decide(any_of(due), lambda: vary_like(new(), perms), lambda: perms)


def reset_moments(fresh: Any, state: Any, due: Any, every: Any) -> Any:
    """Resets moments, and the counts stored with them, where matrices are ``due``.

    A named tuple with a field that mirrors Q is reset: Adam's moments, for example,
    together with its counts. If each array in it has the batch axes of a stack
    (`scale_by_adam_per_matrix`), each matrix is reset by itself. Otherwise (the one
    count of `optax.adam`) the tuple is reset as a whole where ``every`` matrix is
    merged, and is kept at other merges: a reset would leave the moments of the other
    matrices with a wrong correction of the bias. All other state, such as the count of
    a schedule or injected hyperparameters, is kept.
    """
    # No transformation says which of its arrays are moments. But optax builds them with
    # `tree.map` over the parameters, so the path of a moment contains that of its Q.
    of_matrices = dict(jax.tree.leaves_with_path(due))
    pairs = jax.tree.leaves_with_path(state)
    found = [_stack(keys, x, of_matrices) for keys, x in pairs]
    owners = [
        _owner(keys[:end]) for (keys, _), (end, _) in zip(pairs, found, strict=True)
    ]
    resets = {o for o, (end, _) in zip(owners, found, strict=True) if end is not None}
    whole = {o for o, (_, which) in zip(owners, found, strict=True) if which is None}
    every = jnp.asarray(every)
    rows = zip(jax.tree.leaves(fresh), pairs, owners, found, strict=True)
    leaves = [
        select(every if owner in whole else which, new, old) if owner in resets else old
        for new, (_, old), owner, (_, which) in rows
    ]
    return jax.tree.unflatten(jax.tree.structure(state), leaves)


def _stack(keys: tuple, x: jax.Array, due: dict[tuple, jax.Array]) -> tuple[Any, Any]:
    """Where the path of a leaf of Q begins in a path, and which matrices are due.

    Both are None for an array that mirrors no leaf, the latter also for an array
    without the batch axes.
    """
    lengths = {len(path) for path in due}
    for i in range(len(keys)):
        for n in lengths:
            if (which := due.get(keys[i : i + n])) is not None:
                is_batched = x.shape[: which.ndim] == which.shape
                return i, which if is_batched else None
    return None, None


def _owner(keys: tuple) -> tuple:
    """The path of the named tuple that contains a leaf; its own path without one."""
    fields = [i for i, key in enumerate(keys) if isinstance(key, GetAttrKey)]
    return keys[: fields[-1]] if fields else keys
