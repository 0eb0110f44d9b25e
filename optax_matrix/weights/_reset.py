"""Reset of the optimizer state of rotations after a merge."""

from typing import Any

import jax
import jax.numpy as jnp

from optax_matrix.layout.paths import key_name
from optax_matrix.weights._sharding import in_type_of

ROTATIONS, OTHERS = "rotations", "others"  # Fields of `Trainable`, and labels.


def reset_rotations(state: Any, fresh: Any) -> Any:
    """Replaces the part of a state that belongs to the rotations by a fresh one.

    That part is every array under ``rotations``, and the scalars of an inner state
    whose arrays are all of rotations, such as the count of an Adam for rotations only.
    The count of a schedule, whose state has no arrays, is kept.

    Args:
        state: State of any optimizer of a `Trainable`.
        fresh: The state that ``init`` of the optimizer returns.

    Returns:
        The state with parts of `fresh`, in the dtypes and shardings of `state`.
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

    def renewed(place, is_scalar):
        return place[:-1] in alone if is_scalar else _of_rotations(place)

    leaves = [
        in_type_of(old, new) if renewed(place, s) else old
        for (_, old), new, place, s in zip(
            pairs, jax.tree.leaves(fresh), places, scalar, strict=True
        )
    ]
    return jax.tree.unflatten(structure, leaves)


def _of_rotations(place: tuple[str, ...]) -> bool:
    """Whether a path is below the field ``rotations``, not a module of that name."""
    return next((x for x in place if x in (ROTATIONS, OTHERS)), None) == ROTATIONS
