"""MuonEq in a Flax Linen loop: only the optimizer's line is new.

Run it from the root of the repository: `python -m examples.quickstart_linen`. Data and
rates are those of `examples.quickstart`.
"""

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax.training.train_state import TrainState

import optax_matrix as om
from examples.quickstart import batch


class Autoencoder(nn.Module):
    """Two layers into a code of 16 numbers, two out of it."""

    @nn.compact
    def __call__(self, x):
        code = nn.gelu(nn.Dense(16)(nn.gelu(nn.Dense(128)(x))))
        return nn.Dense(32)(nn.gelu(nn.Dense(128)(code)))


@jax.jit
def train_step(state, x):
    """One update; returns the new state and the loss before it."""
    loss = lambda params: jnp.mean((state.apply_fn(params, x) - x) ** 2)
    value, grads = jax.value_and_grad(loss)(state.params)
    return state.apply_gradients(grads=grads), value


def main(steps: int = 200) -> list[float]:
    """Trains, and returns the losses."""
    model, losses = Autoencoder(), []
    params = model.init(jax.random.key(1), batch(jax.random.key(0)))
    rate = lambda peak: optax.linear_schedule(peak, 0.0, steps)
    tx = om.muoneq(rate(4e-2), other_learning_rate=rate(1e-2), weight_decay=1e-4)
    state = TrainState.create(apply_fn=model.apply, params=params, tx=tx)
    for key in jax.random.split(jax.random.key(0), steps):
        state, loss = train_step(state, batch(key))
        losses.append(float(loss))
    return losses


if __name__ == "__main__":
    losses = main()
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
