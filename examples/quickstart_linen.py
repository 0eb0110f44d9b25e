"""MuonEq in a Flax Linen loop: only the optimizer's line is new.

Run it from the root of the repository: `python -m examples.quickstart_linen`.
"""

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.training.train_state import TrainState

import optax_matrix as om


class MLP(nn.Module):
    """Two layers, wider in the middle."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(32)(nn.gelu(nn.Dense(64)(x)))


@jax.jit
def train_step(state, x):
    """One update towards the identity; returns the new state and the loss before it."""
    loss = lambda params: jnp.mean((state.apply_fn(params, x) - x) ** 2)
    value, grads = jax.value_and_grad(loss)(state.params)
    return state.apply_gradients(grads=grads), value


def main(steps: int = 100) -> list[float]:
    """Trains, and returns the losses."""
    model, losses = MLP(), []
    batches = jax.random.normal(jax.random.key(0), (steps, 64, 32))
    params = model.init(jax.random.key(1), batches[0])
    tx = om.muoneq(3e-3)
    state = TrainState.create(apply_fn=model.apply, params=params, tx=tx)
    for x in batches:
        state, loss = train_step(state, x)
        losses.append(float(loss))
    return losses


if __name__ == "__main__":
    losses = main()
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
