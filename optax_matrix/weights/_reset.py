"""Reset of the optimizer state of rotations after a merge."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from optax_matrix._paths import key_name
from optax_matrix.transforms.turns import select
from optax_matrix.weights._sharding import in_type_of

ROTATIONS, OTHERS = "rotations", "others"  # Fields of `Trainable`, and labels.
_OF_TRAINING = "mini_step", "gradient_step"  # Counts of `optax.MultiSteps`.


def reset_rotations(state: Any, fresh: Any, due: Any) -> Any:
    """Replaces the part of a state that belongs to the rotations by a fresh one.

    That part is every array under ``rotations``, and the scalars of an inner state
    that has no other arrays, such as the count of an Adam for rotations only. The
    counts of schedules, whose state has no arrays, and of `optax.MultiSteps` are kept.
    Moments with a scalar count are reset only if all matrices are ``due``; others
    (`scale_by_adam_per_matrix`) are reset for each matrix. Dtypes and shardings are
    taken from ``state``.
    """
    pairs, structure = jax.tree_util.tree_flatten_with_path(state)
    places = [tuple(map(key_name, keys)) for keys, _ in pairs]
    scalar = [jnp.ndim(leaf) == 0 for _, leaf in pairs]
    arrays = [place for place, s in zip(places, scalar, strict=True) if not s]
    # The path of a moment is (*owner, field, "rotations", path, piece, side).
    moments = [p for p in arrays if p[-4:-3] == (ROTATIONS,) and _of_rotations(p)]
    owners = {place[:-5] for place in moments}
    alone = {
        owner
        for owner in owners
        if all(_of_rotations(p) for p in arrays if p[: len(owner)] == owner)
    }

    counted = {place[:-1] for place, s in zip(places, scalar, strict=True) if s}
    single = {
        tuple(map(key_name, k)): x for k, x in jax.tree_util.tree_leaves_with_path(due)
    }
    every = functools.reduce(jnp.logical_and, map(jnp.all, single.values()), True)

    def renewed(place, is_scalar, new, old):
        if not (place[:-1] in alone if is_scalar else _of_rotations(place)):
            return old
        if is_scalar and place[-1] in _OF_TRAINING:
            return old
        by_matrix = not is_scalar and place[:-5] in owners - counted
        which = single[place[-3:-1]] if by_matrix else jnp.asarray(every)
        return in_type_of(old, select(which, new, old))

    rows = zip(places, scalar, jax.tree.leaves(fresh), pairs, strict=True)
    leaves = [renewed(place, s, new, old) for place, s, new, (_, old) in rows]
    return jax.tree.unflatten(structure, leaves)


def _of_rotations(place: tuple[str, ...]) -> bool:
    """Whether a path is below the field ``rotations``, not a module of that name."""
    return next((x for x in place if x in (ROTATIONS, OTHERS)), None) == ROTATIONS
