"""Newton-Muon: Muon whose gradients are divided by the second moment of the inputs.

The second moment ``E z z'`` of the inputs of each layer is known in the forward pass.
Here it is collected in Flax Linen and NNX, without a change to the model's code in
Linen, and passed to `update` as a tree. `on_matrices` stacks it and sends it to the
devices of the matrices, as it does with gradients (its argument ``statistics``).

Run it from the root of the repository: `python -m examples.second_moments`. Data and
model are those of `examples.quickstart`.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn, nnx

import optax_matrix as om
from examples.quickstart import batch
from examples.quickstart_linen import Autoencoder


# The block: a state for each matrix, and the statistic as an argument.
class InputState(NamedTuple):
    """The averaged second moment of the inputs, ``(..., in, in)`` for each stack."""

    moments: Any


def divide_by_inputs(decay: float, eps: float) -> optax.GradientTransformationExtraArgs:
    """``G (K + eps l_max(K) I)^-1`` with K the average of the second moments."""

    def init(params):
        square = lambda x: (*x.shape[:-1], x.shape[-1])[:-2] + (x.shape[-1],) * 2
        return InputState(jax.tree.map(lambda x: jnp.zeros(square(x)), params))

    def update(updates, state, params=None, **statistics):
        del params

        def average(old, new):  # It starts at the first moment.
            begun = jnp.any(old != 0, (-2, -1), keepdims=True)
            return jnp.where(begun, decay * old + (1 - decay) * new, new)

        moments = jax.tree.map(average, state.moments, statistics["second_moments"])
        divide = lambda g, k: g @ om.linalg.inverse_root(k, 1, eps=eps).astype(g.dtype)
        return jax.tree.map(divide, updates, moments), InputState(moments)

    return optax.GradientTransformationExtraArgs(init, update)


def newton_muon(
    rate: optax.ScalarOrSchedule,
    b1: float = 0.95,
    decay: float = 0.95,
    eps: float = 0.1,
    placement: Any = None,
) -> optax.GradientTransformationExtraArgs:
    """``W <- W - rate polar(M)``, M the momentum of ``G (K + eps l_max(K) I)^-1``.

    Source: https://arxiv.org/abs/2604.01472. Not reproduced: the inverse is computed at
    every step, and eps is relative to the largest eigenvalue of K.
    """
    chain = optax.chain(
        divide_by_inputs(decay, eps),
        om.momentum(b1),
        om.orthogonalize(),
        om.scale_by_shape("out/in"),
    )
    return om.on_matrices(
        chain,
        after=optax.scale_by_learning_rate(rate),
        other=optax.adam(rate),
        statistics={"second_moments": ("in", "in")},
        placement=placement,
    )


def second_moment(x: jax.Array) -> jax.Array:
    """The second moment ``(in, in)`` of inputs ``(..., in)``."""
    z = x.reshape(-1, x.shape[-1])
    return z.T @ z / len(z)


# Linen: every Dense stores the second moment of its inputs beside its kernel.
def collect(layer, args, kwargs, context):
    """An interceptor of Linen's methods."""
    if isinstance(context.module, nn.Dense) and context.method_name == "__call__":
        last = {"init_fn": lambda: None, "reduce_fn": lambda _, new: new}
        context.module.sow("moments", "kernel", second_moment(args[0]), **last)
    return layer(*args, **kwargs)


@partial(jax.jit, static_argnums=(0, 1))
def linen_step(model, tx, params, state, x):
    """One update; returns the new parameters and state, and the loss before it."""

    def loss(params):
        with nn.intercept_methods(collect):
            y, found = model.apply({"params": params}, x, mutable=["moments"])
        return jnp.mean((y - x) ** 2), found["moments"]

    (value, moments), grads = jax.value_and_grad(loss, has_aux=True)(params)
    updates, state = tx.update(grads, state, params, second_moments=moments)
    return optax.apply_updates(params, updates), state, value


# NNX: a layer that keeps its second moment; `nnx.pop` takes them out of the model.
class Moment(nnx.Variable):
    """The second moment of a layer's inputs."""


class Linear(nnx.Linear):
    """A layer that keeps the second moment of its inputs."""

    def __call__(self, inputs, *args, **kwargs):
        self.moment = Moment(second_moment(inputs))
        return super().__call__(inputs, *args, **kwargs)


@nnx.jit
def nnx_step(model, optimizer, x):
    """One update; returns the loss before it."""
    loss = lambda model: jnp.mean((model(x) - x) ** 2)
    value, grads = nnx.value_and_grad(loss)(model)
    found = nnx.pop(model, Moment)
    rename = lambda layer: {"kernel": layer["moment"].get_value()}
    moments = {name: rename(found["layers"][name]) for name in found["layers"]}
    optimizer.update(model, grads, second_moments={"layers": moments})
    return value


def main(steps: int = 200) -> dict[str, list[float]]:
    """Trains in both frameworks, and returns the losses."""
    rate = optax.linear_schedule(0.03, 0.0, steps)
    keys = jax.random.split(jax.random.key(0), steps)
    model, tx = Autoencoder(), newton_muon(rate)
    params = model.init(jax.random.key(1), batch(keys[0]))["params"]
    state = tx.init(params)
    rngs = nnx.Rngs(1)
    linear = lambda m, n: Linear(m, n, rngs=rngs)
    encoder = linear(32, 128), jax.nn.gelu, linear(128, 16), jax.nn.gelu
    network = nnx.Sequential(*encoder, linear(16, 128), jax.nn.gelu, linear(128, 32))
    optimizer = nnx.Optimizer(network, newton_muon(rate), wrt=nnx.Param)
    losses: dict[str, list[float]] = {"Linen": [], "NNX": []}
    for key in keys:
        params, state, value = linen_step(model, tx, params, state, batch(key))
        losses["Linen"].append(float(value))
        losses["NNX"].append(float(nnx_step(network, optimizer, batch(key))))
    return losses


if __name__ == "__main__":
    for framework, losses in main().items():
        print(f"{framework}: loss {losses[0]:.3f} -> {losses[-1]:.3f}")
