"""Changes to the parameters from outside of `spo`, folded into the frame."""

from typing import Any

import jax
import jax.numpy as jnp

from optax_matrix.linalg.permuted_blocks import materialize, recover_frame
from optax_matrix.linalg.scale import widened
from optax_matrix.transforms.stochastic_primitives._fingerprint import (
    fingerprint,
    rounded,
)
from optax_matrix.transforms.stochastic_primitives._rare import Decide
from optax_matrix.transforms.turns import select


def edited(w: jax.Array, applied: jax.Array) -> jax.Array:
    """Which matrices are others than the last update led to, ``(...)``."""
    return fingerprint(w) != applied


def with_edits(
    decide: Decide,
    frame: jax.Array,
    w: jax.Array,
    applied: jax.Array,
    moving: jax.Array,
    perms: Any,
    blocks: Any,
) -> jax.Array:
    """The frame, with outside changes to the parameters folded in.

    Frames that are not ``moving`` ``(...)`` stay as they are.
    """
    changed = edited(w, applied) & moving

    def fold():
        exact = materialize(frame, blocks, perms)
        # Entries that differ only by the rounding of their dtype keep all digits.
        wide = widened(w)
        exact = jnp.where(rounded(exact, w.dtype) == wide, exact, wide)
        new = recover_frame(exact, blocks, perms)
        return select(changed, new, frame)

    return decide(jnp.any(changed), fold, lambda: frame)
