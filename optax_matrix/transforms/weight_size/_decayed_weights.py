"""Weight decay as optax has it, with schedules that count in all of its versions."""

from typing import Any

import jax
import optax


def add_decayed_weights(rate: Any, mask: Any = None) -> optax.GradientTransformation:
    """`optax.add_decayed_weights`; in optax 0.2.6 its schedules stay at step 0."""
    decay = optax.add_decayed_weights(rate, mask)
    if not callable(rate):
        return decay

    def update(updates, state, params=None):
        updates, _ = decay.update(updates, state, params)
        # Steps are all that the state of a schedule holds, masked or not.
        return updates, jax.tree.map(optax.safe_increment, state)

    return optax.GradientTransformation(decay.init, update)
