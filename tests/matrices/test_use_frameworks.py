"""`by_use` with the models of each framework, and its rule where they train."""

import equinox as eqx
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _uses import keras_models as keras_models
from _uses.battery import A
from flax import linen as nn, nnx
from flax.core import FrozenDict, freeze

import optax_matrix as om
from optax_matrix.matrices import by_use
from optax_matrix.matrices.decisions import decide

X = A(5, 4)


def matrices(rule):
    return [path for path, numbers in rule.numbers if numbers]


class Net(nnx.Module):
    def __init__(self, rngs):
        self.up = nnx.Linear(4, 8, rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.out = nnx.Linear(8, 3, rngs=rngs)

    def __call__(self, x):
        return self.out(self.drop(self.norm(jax.nn.relu(self.up(x)))))


def state_of(net):
    state = nnx.to_pure_dict(nnx.state(net, nnx.Not(nnx.RngKey)))
    return jax.tree.map(np.asarray, state)


@pytest.mark.broad
@pytest.mark.programs(30, "NNX draws the weights of the model")
def test_a_nnx_model_is_left_as_it_is_and_trains():
    net, x = Net(nnx.Rngs(0)), np.ones((5, 4), "f")
    before = state_of(net)
    rules = [
        by_use(net, x),
        by_use(lambda net, x: net(x).sum(), net, X),
        by_use(nnx.eval_shape(lambda: Net(nnx.Rngs(0))), X),
    ]
    graph, params, rest = nnx.split(net, nnx.Param, ...)
    of_state = lambda params, rest, x: nnx.merge(graph, params, rest)(x)
    rules.append(by_use(of_state, params, rest, X))
    jax.tree.map(np.testing.assert_array_equal, before, state_of(net))
    for rule in rules:
        assert rule.numbers == rules[0].numbers
        assert matrices(rule) == ["up/kernel"]
    with pytest.raises(ValueError, match=r"state of NNX .* by_use\(loss, model, batch"):
        by_use(lambda params, x: nnx.merge(graph, params, rest)(x), params, X)

    tx = om.muon(0.02, dimension_numbers=rules[0])
    optimizer = nnx.Optimizer(net, tx, wrt=nnx.Param)

    @nnx.jit
    def step(net, optimizer, x):
        loss, gradients = nnx.value_and_grad(lambda net: (net(x) ** 2).mean())(net)
        optimizer.update(net, gradients)
        return loss

    x = np.random.default_rng(0).standard_normal((5, 4), "f")
    losses = [step(net, optimizer, x) for _ in range(8)]
    assert losses[-1] < losses[0]


class Linen(nn.Module):
    @nn.compact
    def __call__(self, x, depth, train: bool):
        named = nn.with_logical_partitioning
        init = nn.initializers.lecun_normal()
        for _ in range(depth):
            x = nn.Dense(8, kernel_init=named(init, ("embed", "mlp")))(x)
            x = nn.BatchNorm(use_running_average=not train)(x)
            x = nn.Dropout(0.5, deterministic=not train)(nn.relu(x))
        return nn.Dense(3)(nn.tanh(x))


@pytest.mark.broad
@pytest.mark.parametrize("wrap", [dict, freeze], ids=["dict", "frozen"])
def test_linen_variables_in_boxes_and_frozen(wrap):
    """What Linen holds beside "params" is constant, and not in the table."""
    model, of = Linen(), jax.eval_shape
    keys = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    variables = wrap(of(lambda: model.init(keys, jnp.ones((5, 4)), 2, False)))
    assert isinstance(variables, FrozenDict) == (wrap is freeze)
    options = {"mutable": ["batch_stats"], "rngs": {"dropout": jax.random.key(2)}}
    rule = by_use(model.apply, variables, X, 2, train=True, **options)
    assert matrices(rule) == ["params/Dense_0/kernel", "params/Dense_1/kernel"]
    assert not any("batch_stats" in path for path, _ in rule.numbers)
    plain = by_use(model.apply, nn.meta.unbox(variables), X, 2, False)
    sides = lambda rule: [
        x and (x.reduction_axis, x.output_axis) for _, x in rule.numbers
    ]
    assert sides(plain) == sides(rule)
    tx = om.muon(0.02, dimension_numbers=rule)
    for params in (variables["params"], nn.meta.unbox(variables["params"])):
        state = of(tx.init, params)
        of(tx.update, params, state, params)


class Attends(eqx.Module):
    reads: eqx.nn.Linear
    attends: eqx.nn.MultiheadAttention
    drop: eqx.nn.Dropout
    out: eqx.nn.Linear
    width: int = eqx.field(static=True)

    def __init__(self, key):
        self.reads = eqx.nn.Linear(4, 8, key=key)
        self.attends = eqx.nn.MultiheadAttention(2, 8, key=key)
        self.drop = eqx.nn.Dropout(0.5)
        self.out = eqx.nn.Linear(8, 3, key=key)
        self.width = 8

    def __call__(self, x, key):
        x = jax.vmap(self.reads)(x).reshape(-1, self.width)
        return jax.vmap(self.out)(x + self.drop(self.attends(x, x, x), key=key))


@pytest.mark.broad
def test_an_equinox_model_its_filters_and_its_functions():
    key = jax.random.key(0)
    net = eqx.filter_eval_shape(Attends, key)
    loss = lambda net, x, key: (net(x, key) ** 2).mean()
    params, static = eqx.partition(net, lambda x: hasattr(x, "shape"))
    of_parts = lambda params, x, key: eqx.combine(params, static)(x, key)
    rules = [
        by_use(net, X, key),
        by_use(loss, net, X, key),
        by_use(eqx.filter_jit(loss), net, X, key),
        by_use(of_parts, params, X, key),
    ]
    wanted = [f"attends/{name}_proj/weight" for name in ("query", "key", "value")]
    wanted += ["attends/output_proj/weight", "reads/weight"]
    for rule in rules:
        assert rule.numbers == rules[0].numbers
        assert sorted(matrices(rule)) == sorted(wanted)
    heads = {v.path: v.heads for v in rules[0].verdicts if v.heads}
    assert heads == dict.fromkeys(wanted[:3], 2)
    tx = om.muon(0.02, heads="split", dimension_numbers=rules[0])
    state = eqx.filter_eval_shape(tx.init, params)
    eqx.filter_eval_shape(tx.update, params, state, params)


@pytest.mark.broad
def test_haiku_functions_with_a_key_or_none():
    def net(x, is_training):
        x = jnp.tanh(hk.Linear(8)(x))
        x = hk.dropout(hk.next_rng_key(), 0.5, x) if is_training else x
        return hk.Linear(3)(x)

    transformed = hk.transform(net)
    key = jax.random.key(0)
    params = jax.eval_shape(lambda: transformed.init(key, jnp.ones((5, 4)), True))
    rule = by_use(transformed.apply, params, key, X, is_training=True)
    assert matrices(rule) == ["linear/w"]
    assert rule.numbers == by_use(transformed.apply, params, None, X, False).numbers
    jax.eval_shape(om.muon(0.02, dimension_numbers=rule).init, params)


@pytest.mark.slow
def test_keras_by_its_stateless_call():
    import keras  # After the backend is set, by `_uses.keras_models`.

    layers = [keras.layers.Dense(8, "relu"), keras.layers.BatchNormalization()]
    net = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(3)])
    params = {v.path: v.value for v in net.trainable_variables}
    rest = [v.value for v in net.non_trainable_variables]

    def fn(params, x):
        return net.stateless_call(list(params.values()), rest, x, training=True)[0]

    order = {path: i for i, path in enumerate(params)}
    ordered = lambda p: {path: p[path] for path in order}
    rule = by_use(lambda p, x: fn(ordered(p), x), params, X)
    assert len(matrices(rule)) == 1
    assert matrices(rule)[0].endswith("dense/kernel")
    jax.eval_shape(om.muon(0.02, dimension_numbers=rule).init, params)


def test_optax_takes_the_rule_as_its_own_dimension_numbers():
    fn = lambda p, x: jnp.tanh(x @ p["up"].T) @ p["out"]
    params = {"up": A(8, 4), "out": A(8, 3)}
    rule = by_use(fn, params, X)
    tx = optax.contrib.muon(0.02, muon_weight_dimension_numbers=rule)
    jax.eval_shape(tx.init, params)
    assert rule(params)["up"].reduction_axis == 1
    assert decide(params, rule(params))["up"].view == decide(params, rule)["up"].view
