"""A step of a transformation as one program, its updates as NumPy arrays."""

import jax


def first_update(tx, updates, params=None, **extra_args):
    """The updates of the step that a new state begins with, and the state after it."""

    def step(updates, params, extra_args):
        state = tx.init(updates if params is None else params)
        return tx.update(updates, state, params, **extra_args)

    new, state = jax.jit(step)(updates, params, extra_args)
    return jax.device_get(new), state
