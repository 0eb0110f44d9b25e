"""One small problem in NNX, Linen, Equinox and plain trees, and plain loops over it."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn, nnx

import optax_matrix as om

RATES, STEPS = (0.02, 0.04, 0.08), 12
BATCHES = np.float32(np.random.default_rng(0).standard_normal((STEPS, 8, 4)))
HELD_OUT = np.float32(np.random.default_rng(1).standard_normal((32, 4)))


def make(rate):
    """Two rates with one shape, as the guides have it."""
    cosine = lambda peak: optax.cosine_decay_schedule(peak, STEPS)
    return om.muoneq(cosine(4 * rate), other_learning_rate=cosine(rate))


def distance(out, x):
    return jnp.mean((out - jnp.flip(x, -1) * 2) ** 2)


class OfNNX(nnx.Module):
    """With statistics and a counter of keys, which the loss changes in place."""

    def __init__(self, rngs):
        self.up = nnx.Linear(4, 8, rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.down = nnx.Linear(8, 4, rngs=rngs)

    def __call__(self, x):
        return self.down(self.dropout(self.norm(jnp.tanh(self.up(x)))))


class OfLinen(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(4)(jnp.tanh(nn.Dense(8)(x)))


def nnx_model(seed=0):
    return OfNNX(nnx.Rngs(seed))


def linen_model(seed=0):
    return OfLinen().init(jax.random.key(seed), BATCHES[0])


def equinox_model(seed=0):
    return eqx.nn.MLP(4, 4, 8, 1, jnp.tanh, key=jax.random.key(seed))


def plain_model(seed=0):
    keys = jax.random.split(jax.random.key(seed))
    draw = lambda key, *shape: jax.random.normal(key, shape) / 2
    up, down = draw(keys[0], 4, 8), draw(keys[1], 8, 4)
    return {"up": {"kernel": up, "bias": jnp.zeros(8)}, "down": {"kernel": down}}


PROBLEMS = {
    "nnx": (nnx_model, lambda model, x: distance(model(x), x)),
    "linen": (linen_model, lambda params, x: distance(OfLinen().apply(params, x), x)),
    "equinox": (equinox_model, lambda model, x: distance(jax.vmap(model)(x), x)),
    "plain": (
        plain_model,
        lambda p, x: distance(
            jnp.tanh(x @ p["up"]["kernel"] + p["up"]["bias"]) @ p["down"]["kernel"], x
        ),
    ),
}


@functools.cache
def by_nnx():
    """The loop of a user of NNX, its step taking the rate."""
    loss = PROBLEMS["nnx"][1]
    init = jax.jit(lambda rate, params: make(rate).init(params))

    @functools.partial(jax.jit, static_argnums=0)
    def step(graph, rate, params, rest, state, x):
        model = nnx.merge(graph, params, rest)
        value, grads = nnx.value_and_grad(loss)(model, x)
        updates, state = make(rate).update(grads, state, params)
        nnx.update(model, optax.apply_updates(params, updates))
        return (*nnx.split(model, nnx.Param, ...)[1:], state, value)

    def run(rate, seed=0, batches=BATCHES):
        graph, params, rest = nnx.split(nnx_model(seed), nnx.Param, ...)
        losses, state = [], init(rate, params)
        for x in batches:
            params, rest, state, value = step(graph, rate, params, rest, state, x)
            losses.append(float(value))
        return losses, nnx.merge(graph, params, rest)

    return run


def run_of(start, init, step):
    """The loop around a compiled step."""

    def run(rate, seed=0, batches=BATCHES):
        losses, rate, model = [], jnp.asarray(rate), start(seed)
        state = init(rate, model)
        for x in batches:
            model, state, value = step(rate, model, state, x)
            losses.append(float(value))
        return losses, model

    return run


@functools.cache
def by_equinox():
    loss, parameters = PROBLEMS["equinox"][1], eqx.is_inexact_array
    init = eqx.filter_jit(lambda r, m: make(r).init(eqx.filter(m, parameters)))

    @eqx.filter_jit
    def step(rate, model, state, x):
        value, grads = eqx.filter_value_and_grad(loss)(model, x)
        params = eqx.filter(model, parameters)
        updates, state = make(rate).update(grads, state, params)
        return eqx.apply_updates(model, updates), state, value

    return run_of(equinox_model, init, step)


@functools.cache
def by_tree(kind):
    start, loss = PROBLEMS[kind]
    init = jax.jit(lambda rate, params: make(rate).init(params))

    @jax.jit
    def step(rate, params, state, x):
        value, grads = jax.value_and_grad(loss)(params, x)
        updates, state = make(rate).update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    return run_of(start, init, step)


def loop(kind):
    """A function of rate, seed and batches to the losses and the trained model."""
    frameworks = {"nnx": by_nnx, "equinox": by_equinox}
    return frameworks.get(kind, lambda: by_tree(kind))()
