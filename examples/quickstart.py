"""MuonEq in a Flax NNX loop: only the optimizer's line is new.

Run it from the root of the repository: `python -m examples.quickstart`.
"""

import jax
import jax.numpy as jnp
from flax import nnx

import optax_matrix as om


class MLP(nnx.Module):
    """Two layers, wider in the middle."""

    def __init__(self, rngs):
        self.up = nnx.Linear(32, 64, rngs=rngs)
        self.down = nnx.Linear(64, 32, rngs=rngs)

    def __call__(self, x):
        return self.down(jax.nn.gelu(self.up(x)))


@nnx.jit
def train_step(model, optimizer, x):
    """One update towards the identity; returns the loss before it."""
    loss, grads = nnx.value_and_grad(lambda m: jnp.mean((m(x) - x) ** 2))(model)
    optimizer.update(model, grads)
    return loss


def main(steps: int = 100) -> list[float]:
    """Trains, and returns the losses."""
    model = MLP(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, om.muoneq(3e-3), wrt=nnx.Param)
    batches = jax.random.normal(jax.random.key(0), (steps, 64, 32))
    return [float(train_step(model, optimizer, x)) for x in batches]


if __name__ == "__main__":
    losses = main()
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
