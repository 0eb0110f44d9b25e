"""MuonEq against AdamW in a Flax NNX loop: only the optimizer is new.

Run it from the root of the repository: `python -m examples.quickstart`. The rates are
the best of five for each; `examples.quickstart_rates` chose them, on other seeds.
"""

import jax
import jax.numpy as jnp
import optax
from flax import nnx

import optax_matrix as om


def autoencoder(rngs):
    """Two layers into a code of 16 numbers, two out of it."""
    linear = lambda m, n: nnx.Linear(m, n, rngs=rngs)
    encoder = linear(32, 128), jax.nn.gelu, linear(128, 16), jax.nn.gelu
    decoder = linear(16, 128), jax.nn.gelu, linear(128, 32)
    return nnx.Sequential(*encoder, *decoder)


# Standard deviations fall as 1 / k; the mean square is one.
batch = lambda key, n=64: jax.random.normal(key, (n, 32)) * 4.452 / jnp.arange(1, 33)
loss = lambda model, x: jnp.mean((model(x) - x) ** 2)


@nnx.jit
def train_step(model, optimizer, x):
    grads = nnx.grad(loss)(model, x)
    optimizer.update(model, grads)


def train(tx, seed=0, steps=200):
    """The loss on new data after training."""
    model = autoencoder(nnx.Rngs(seed))
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    for key in jax.random.split(jax.random.key(seed), steps):
        train_step(model, optimizer, batch(key))
    return loss(model, batch(jax.random.key(10_000), 4096))


# Rates fall to zero. MuonEq uses its own for the matrices and AdamW's for the rest.
rate = lambda peak: optax.linear_schedule(peak, 0.0, 200)
adamw = optax.adamw(rate(1e-2), weight_decay=1e-4)
muoneq = om.muoneq(rate(4e-2), other_learning_rate=rate(1e-2), weight_decay=1e-4)

if __name__ == "__main__":
    print(f"AdamW   {train(adamw):.4f}")
    print(f"MuonEq  {train(muoneq):.4f}")
