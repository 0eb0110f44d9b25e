"""`tie` in the layers of NNX, Linen and Equinox models, as the guide has it."""

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _barriers import assert_equal, barriers
from flax import nnx

from optax_matrix.sharding import tie

X = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
LAYERS = 3


class Layer(nnx.Module):
    """Has state besides its parameters: averages, and what dropout draws from."""

    def __init__(self, rngs):
        self.linear = nnx.Linear(8, 8, rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return x + self.dropout(jnp.tanh(self.norm(self.linear(x))))


class Model(nnx.Module):
    def __init__(self, apply, rngs):
        self.apply = apply
        self.layers = nnx.List([Layer(rngs) for _ in range(LAYERS)])

    def __call__(self, x):
        for layer in self.layers:
            x = self.apply(layer, x)
        return x


def tied_nnx(layer, x):
    x, params = tie(x, nnx.state(layer, nnx.Param))
    nnx.update(layer, params)
    return layer(x)


def remat_nnx(layer, x):
    x, params = tie(x, nnx.state(layer, nnx.Param))
    nnx.update(layer, params)
    return nnx.remat(Layer.__call__)(layer, x)


def _trained(apply):
    """Gradients of two steps, and the model's state after them."""
    model = Model(apply, nnx.Rngs(0))
    step = nnx.jit(nnx.grad(lambda model: jnp.sum(model(X) ** 2)))
    grads = [nnx.to_pure_dict(step(model)) for _ in range(2)]
    state = nnx.to_pure_dict(nnx.state(model, nnx.Not(nnx.RngKey)))
    return grads, state


@pytest.mark.broad
@pytest.mark.parametrize("apply", [tied_nnx, remat_nnx])
def test_nnx(apply):
    """Of the second step, too: the counts of dropout and the averages have moved."""
    (first, second), state = got = _trained(apply)
    assert_equal(got, _trained(lambda layer, x: layer(x)))
    kernels = [each["layers"][0]["linear"]["kernel"] for each in (first, second)]
    assert np.any(kernels[0] != kernels[1])
    assert int(state["layers"][0]["dropout"]["rngs"]["count"]) == 2


@pytest.mark.broad
def test_of_nnx_each_layer_has_a_barrier():
    graph, state = nnx.split(Model(tied_nnx, nnx.Rngs(0)))
    loss = lambda state: jnp.sum(nnx.merge(graph, state)(X) ** 2)
    found = barriers(jax.grad(loss, allow_int=True), state)
    assert sum((8, 8) in shapes for shapes in found) == LAYERS


def test_an_nnx_module_is_refused():
    """A copy of it would keep the new averages for itself."""
    with pytest.raises(ValueError, match=r"no NNX module.* got Layer; tie nnx\.state"):
        tie(X, {"layer": nnx.eval_shape(lambda: Layer(nnx.Rngs(0)))})


class Block(nn.Module):
    @nn.compact
    def __call__(self, x):
        y = nn.Dropout(0.5, deterministic=False)(nn.Dense(8)(x))
        return x + jnp.tanh(nn.BatchNorm(use_running_average=False)(y))


def test_a_linen_module_is_refused():
    """It has no arrays, so that nothing would be tied."""
    with pytest.raises(ValueError, match=r"no Linen module.* got Block; tie the param"):
        tie(X, Block())


def tied_linen(block, x):
    run = lambda block, x: block(x)
    forward = lambda block, x: nn.vjp(run, block, x)
    backward = lambda vjp, dy: jax.lax.optimization_barrier(vjp(dy))
    return nn.custom_vjp(run, forward, backward)(block, x)


@pytest.mark.broad
@pytest.mark.parametrize("block", [Block, nn.remat(Block)])
def test_linen(block):
    def run(apply):
        class Net(nn.Module):
            @nn.compact
            def __call__(self, x):
                for i in range(LAYERS):
                    x = apply(block(name=f"block_{i}"), x)
                return x

        keys = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
        variables = Net().init(keys, X)

        def loss(params):
            given = {**variables, "params": params}
            how = {"rngs": {"dropout": keys["dropout"]}, "mutable": ["batch_stats"]}
            y, state = Net().apply(given, X, **how)
            return jnp.sum(y**2), state

        grad = jax.value_and_grad(loss, has_aux=True)
        found = barriers(grad, variables["params"])
        return jax.jit(grad)(variables["params"]), found

    (got, ties), (want, _) = run(tied_linen), run(lambda block, x: block(x))
    assert_equal(got, want)
    assert sum((8, 8) in shapes and X.shape in shapes for shapes in ties) == LAYERS


@pytest.mark.broad
def test_equinox():
    keys = jax.random.split(jax.random.key(0), LAYERS)
    layers = [eqx.nn.MLP(8, 8, 8, 1, key=key) for key in keys]

    def loss(layers, apply):
        x = X
        for layer in layers:
            x = apply(layer, x)
        return jnp.sum(x**2)

    plain = lambda layer, x: jax.vmap(layer)(x)
    tied = lambda layer, x: plain(*tie(layer, x))
    grad = lambda apply: eqx.filter_jit(eqx.filter_grad(loss))(layers, apply)
    assert_equal(grad(tied), grad(plain))
    arrays, static = eqx.partition(layers, eqx.is_array)
    by_arrays = lambda arrays: loss(eqx.combine(arrays, static), tied)
    assert len(barriers(jax.grad(by_arrays), arrays)) == LAYERS
