"""Optimizer state of weights that have just been merged, as if they were new."""

from typing import Any

import jax
import jax.numpy as jnp

from optax_matrix.layout.paths import key_name
from optax_matrix.weights._types import in_type_of

ROTATIONS, OTHERS = "rotations", "others"  # Fields of `Trainable`, and labels.


def reset_rotations(state: Any, fresh: Any) -> Any:
    """Takes what an optimizer remembers of the rotations from a fresh state.

    That is every array under ``rotations``, and the scalars that stand beside such
    arrays alone: Adam's count, if Adam has the rotations to itself. The count of a
    schedule has no arrays beside it and goes on.

    Args:
        state: State of any optimizer of a `Trainable`.
        fresh: The same as its ``init`` makes it.

    Returns:
        The state with parts of `fresh`, in the types of `state`.
    """
    pairs, structure = jax.tree_util.tree_flatten_with_path(state)
    places = [tuple(map(key_name, keys)) for keys, _ in pairs]
    scalar = [jnp.ndim(leaf) == 0 for _, leaf in pairs]
    arrays = [place for place, s in zip(places, scalar, strict=True) if not s]
    # A moment stands at (..., field, "rotations", path, piece, side) of its owner.
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
    """Whether it is below ``rotations``, and not below a module of that name."""
    return next((x for x in place if x in (ROTATIONS, OTHERS)), None) == ROTATIONS
