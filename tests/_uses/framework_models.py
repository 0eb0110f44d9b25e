"""Layers of Flax, Equinox and Haiku, each between an entrance and a last layer."""

import functools
import importlib
from typing import Any

import jax
import jax.numpy as jnp
from _uses.battery import GROUPS, A, T

LAYERS = GROUPS.setdefault("framework", {})


def layer(make):
    """Registers a function that returns a function, parameters, inputs and answers."""
    LAYERS[make.__name__] = make
    return make


def called(layer, x):
    return layer(x)


def nnx_layer(make, x, answers, *, size, call=called):
    """A layer of NNX, a norm and a last layer behind it."""
    nnx = importlib.import_module("flax.nnx")

    class Model(nnx.Module):
        def __init__(self, rngs):
            self.layer = make(nnx, rngs)
            self.out = nnx.Linear(size, 5, rngs=rngs)

        def __call__(self, x):
            return self.out(jax.nn.relu(call(self.layer, x)))

    model = nnx.eval_shape(lambda: Model(nnx.Rngs(0)))
    return (lambda m, x: m(x)), model, (x,), {"^out/": "-", **answers}


def linen_layer(make, x, answers, *, call=called):
    nn = importlib.import_module("flax.linen")

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            h = jax.nn.relu(call(make(nn), x))
            return nn.Dense(5, name="out")(h)

    key = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    variables = jax.eval_shape(Model().init, key, x)
    params = variables.pop("params")
    rest = jax.tree.map(lambda x: jnp.ones(x.shape, x.dtype), variables)

    def fn(params, x):
        return Model().apply({"params": params, **rest}, x)

    return fn, params, (x,), {"^out/": "-", **answers}


def haiku_layer(make, x, answers):
    hk = importlib.import_module("haiku")
    run = lambda x: hk.Linear(5, name="out")(jax.nn.relu(make(hk, x)))
    model = hk.transform_with_state(run)
    params, state = jax.eval_shape(model.init, jax.random.key(0), x)
    state = jax.tree.map(lambda x: jnp.ones(x.shape, x.dtype), state)

    def fn(params, x):
        return model.apply(params, state, jax.random.key(0), x)[0]

    return fn, params, (x,), {"^out/": "-", **answers}


def equinox_layer(make, x, answers, *, size, call=called):
    eqx = importlib.import_module("equinox")

    class Model(eqx.Module):
        layer: Any
        out: Any

        def __init__(self, key):
            keys = jax.random.split(key)
            self.layer = make(eqx.nn, keys[0])
            self.out = eqx.nn.Linear(size, 5, key=keys[1])

        def __call__(self, x):
            return self.out(jax.nn.relu(call(self.layer, x)))

    model = eqx.filter_eval_shape(Model, jax.random.key(0))
    fn = lambda model, x: jax.vmap(model)(x)
    return fn, model, (x,), {"^out/": "-", **answers}


X, SEQ, IMAGE = A(4, 7), A(4, 9, 7), A(2, 8, 8, 6)
linear = functools.partial(nnx_layer, size=12)


@layer
def nnx_linear_general():
    make = lambda nnx, r: nnx.LinearGeneral((3, 7), (4, 3), axis=(1, 2), rngs=r)
    call = lambda layer, x: layer(x).reshape(4, 12)
    return linear(make, A(4, 3, 7), {"kernel": "iioo", "bias": "-"}, call=call)


@layer
def nnx_linear_general_with_batch():
    make = lambda nnx, r: nnx.LinearGeneral(7, 4, axis=-1, batch_axis={0: 3}, rngs=r)
    answers = {"layer/kernel": "bio", "bias": "-"}
    return nnx_layer(make, A(3, 4, 7), answers, size=4)


@layer
def nnx_einsum_out_first():
    make = lambda nnx, r: nnx.Einsum("bi,oi->bo", (12, 7), (12,), rngs=r)
    return linear(make, X, {"kernel": "oi"})


@layer
def nnx_lora_linear():
    make = lambda nnx, r: nnx.LoRALinear(7, 12, lora_rank=3, rngs=r)
    return linear(make, X, {"kernel": "io", "lora_": "io"})


@layer
def nnx_causal_convolution():
    make = lambda nnx, r: nnx.Conv(7, 12, (3,), padding="CAUSAL", rngs=r)
    return linear(make, SEQ, {"kernel": "iio"})


@layer
def nnx_circular_grouped_convolution():
    make = lambda nnx, r: nnx.Conv(
        6, 12, (3, 3), padding="CIRCULAR", feature_group_count=3, rngs=r
    )
    return linear(make, IMAGE, {"kernel": "iiio/3"})


@layer
def nnx_masked_convolution():
    mask = jnp.ones((3, 3, 6, 12)).at[2].set(0)
    make = lambda nnx, r: nnx.Conv(6, 12, (3, 3), mask=mask, rngs=r)
    return linear(make, IMAGE, {"kernel": "iiio"})


@layer
def nnx_transposed_convolution():
    make = lambda nnx, r: nnx.ConvTranspose(6, 12, (3, 3), (2, 2), rngs=r)
    return linear(make, IMAGE, {"kernel": "iiio"})


@layer
def nnx_transposed_kernel():
    make = lambda nnx, r: nnx.ConvTranspose(
        6, 12, (3, 3), (2, 2), transpose_kernel=True, rngs=r
    )
    return linear(make, IMAGE, {"kernel": "iioi"})


@layer
def nnx_spectral_norm():
    def make(nnx, r):
        return nnx.SpectralNorm(nnx.Linear(7, 12, rngs=r), rngs=r)

    call = lambda layer, x: layer(x, update_stats=True)
    return linear(make, X, {"kernel": "io?"}, call=call)


@layer
def nnx_both_directions():
    def make(nnx, r):
        one = lambda: nnx.RNN(nnx.LSTMCell(7, 6, rngs=r))
        return nnx.Bidirectional(one(), one(), rngs=r)

    return linear(make, SEQ, {"kernel": "io|io/4"})


@layer
def nnx_attention_with_dropout():
    make = lambda nnx, r: nnx.MultiHeadAttention(
        3, 7, 12, 12, normalize_qk=True, dropout_rate=0.1, decode=False, rngs=r
    )
    call = lambda layer, x: layer(x, deterministic=False)
    answers = {"(query|key|value)/kernel": "ioo", "out/kernel": "iio", "bias": "-"}
    answers = {"layer/out/kernel": "iio", **answers}
    return linear(make, SEQ, answers, call=call)


@layer
def nnx_stacked_by_vmap():
    def make(nnx, r):
        @nnx.split_rngs(splits=3)
        @nnx.vmap
        def stack(rngs):
            return nnx.Linear(7, 7, rngs=rngs)

        return stack(r)

    def call(layers, x):
        nnx = importlib.import_module("flax.nnx")
        step = nnx.scan(
            lambda x, layer: jnp.tanh(layer(x)),
            in_axes=(nnx.Carry, 0),
            out_axes=nnx.Carry,
        )
        return step(x, layers)

    return nnx_layer(make, X, {"kernel": "bio", "bias": "-"}, size=7, call=call)


@layer
def linen_dense_general_with_batch():
    make = lambda nn: nn.DenseGeneral(4, axis=-1, batch_dims=(0,))
    call = lambda layer, x: layer(x)
    return linen_layer(make, A(3, 4, 7), {"kernel": "bio", "bias": "-"}, call=call)


@layer
def linen_unshared_convolution():
    make = lambda nn: nn.ConvLocal(12, (3,))
    return linen_layer(
        make, SEQ, {"DenseGeneral|ConvLocal.*kernel": "bio", "bias": "-"}
    )


@layer
def linen_self_attention():
    make = lambda nn: nn.MultiHeadDotProductAttention(
        3, qkv_features=12, normalize_qk=True, deterministic=True
    )
    answers = {"(query|key|value)/kernel": "ioo", "_0/out/kernel": "iio", "bias": "-"}
    return linen_layer(make, SEQ, answers)


@layer
def linen_minimal_gated_unit():
    make = lambda nn: nn.RNN(nn.MGUCell(12))
    return linen_layer(make, SEQ, {"kernel": "io"})


@layer
def linen_convolutional_lstm():
    make = lambda nn: nn.RNN(nn.ConvLSTMCell(6, (3, 3)))
    answers = {"kernel": "iiio/4"}
    return linen_layer(make, A(2, 4, 8, 8, 3), answers)


@layer
def linen_spectral_norm():
    make = lambda nn: nn.SpectralNorm(nn.Dense(12))
    call = lambda layer, x: layer(x, update_stats=False)
    return linen_layer(make, X, {"kernel": "io?"}, call=call)


@layer
def linen_mapped_and_scanned():
    def call(_, x):
        nn = importlib.import_module("flax.linen")

        class Block(nn.Module):
            @nn.compact
            def __call__(self, x, _):
                return x + nn.Dense(7)(nn.tanh(nn.Dense(12)(x))), None

        many = nn.vmap(
            nn.scan(
                nn.remat(Block),
                variable_axes={"params": 0},
                split_rngs={"params": True},
                length=2,
            ),
            in_axes=(None, None),
            out_axes=0,
            axis_size=3,
            variable_axes={"params": 0},
            split_rngs={"params": True},
        )
        return many(name="many")(x, None)[0].mean(0)

    return linen_layer(lambda _: None, X, {"kernel": "bbio", "bias": "-"}, call=call)


@layer
def linen_fp8():
    make = lambda nn: nn.Dense(12, dot_general_cls=nn.Fp8DirectDotGeneralOp)
    return linen_layer(make, A(16, 16), {"kernel": "io?"})


@layer
def haiku_separable_convolution():
    def make(hk, x):
        return hk.SeparableDepthwiseConv2D(2, 3)(x)

    return haiku_layer(make, IMAGE, {"depthwise|separable|/w": "-?"})


@layer
def haiku_resnet():
    make = lambda hk, x: hk.nets.ResNet18(12)(x, is_training=True)
    return haiku_layer(make, A(2, 32, 32, 3), {"logits/w": "io", "/w$": "iiio"})


@layer
def haiku_stack_of_layers():
    def make(hk, x):
        stack = hk.experimental.layer_stack(3)
        return stack(lambda x: jnp.tanh(hk.Linear(7)(x)))(x)

    return haiku_layer(make, X, {"/w$": "bio", "/b$": "-"})


@layer
def haiku_vector_quantizer():
    def make(hk, x):
        z = hk.Linear(6, name="enc")(x)
        q = hk.nets.VectorQuantizer(6, 9, 0.25)(z, is_training=True)["quantize"]
        return hk.Linear(12, name="dec")(q)

    return haiku_layer(make, X, {"enc/w": "io", "dec/w": "io", "embeddings": "-"})


@layer
def haiku_convolutional_lstm():
    def make(hk, x):
        core = hk.Conv2DLSTM((8, 8), 6, 3)
        return hk.dynamic_unroll(core, x, core.initial_state(2))[0]

    return haiku_layer(make, A(4, 2, 8, 8, 3), {"/w$": "iiio/4"})


@layer
def haiku_bias_and_multiply():
    def make(hk, x):
        x = hk.LayerNorm((-2, -1), True, True)(x)
        return hk.Linear(12)(hk.Bias(bias_dims=[-2, -1])(x))

    return haiku_layer(make, SEQ, {"linear/w": "io", "scale|offset|/b$": "-"})


@layer
def equinox_norm_of_two_axes():
    make = lambda nn, _: nn.LayerNorm((9, 7))
    call = lambda layer, x: layer(x).mean(0)
    return equinox_layer(make, SEQ, {"layer/": "-"}, size=7, call=call)


@layer
def equinox_gru():
    def call(cell, x):
        return jax.lax.scan(lambda h, x: (cell(x, h), None), jnp.zeros(12), x)[0]

    make = lambda nn, key: nn.GRUCell(7, 12, key=key)
    return equinox_layer(make, SEQ, {"weight": "oi/3"}, size=12, call=call)


@layer
def equinox_lstm():
    def call(cell, x):
        start = jnp.zeros(12), jnp.zeros(12)
        return jax.lax.scan(lambda h, x: (cell(x, h), None), start, x)[0][0]

    make = lambda nn, key: nn.LSTMCell(7, 12, key=key)
    return equinox_layer(make, SEQ, {"weight": "oi/4"}, size=12, call=call)


@layer
def equinox_transposed_convolution():
    make = lambda nn, key: nn.ConvTranspose2d(6, 12, 3, 2, key=key)
    call = lambda layer, x: layer(x).mean((1, 2))
    answers = {"layer/weight": "oiii", "bias": "-"}
    return equinox_layer(make, A(2, 6, 8, 8), answers, size=12, call=call)


@layer
def equinox_grouped_convolution():
    make = lambda nn, key: nn.Conv1d(6, 12, 3, groups=3, key=key)
    call = lambda layer, x: layer(x).mean(1)
    answers = {"layer/weight": "oii/3", "bias": "-"}
    return equinox_layer(make, A(2, 6, 9), answers, size=12, call=call)


@layer
def equinox_weight_norm():
    make = lambda nn, key: nn.WeightNorm(nn.Linear(7, 12, key=key))
    return equinox_layer(make, X, {"layer/.*weight": "oi", "g$": "-"}, size=12)


@layer
def equinox_attention_with_rotation():
    def call(layer, x):
        nn = importlib.import_module("equinox").nn
        rope = nn.RotaryPositionalEmbedding(4)
        turn = lambda q, k, v: (jax.vmap(rope, 1, 1)(q), jax.vmap(rope, 1, 1)(k), v)
        return layer(x, x, x, process_heads=turn).mean(0)

    make = lambda nn, key: nn.MultiheadAttention(3, 7, 7, 7, 12, 4, 4, key=key)
    answers = {"proj/weight": "oi"}
    return equinox_layer(make, SEQ, answers, size=12, call=call)


@layer
def equinox_ensemble():
    def make(nn, key):
        eqx = importlib.import_module("equinox")
        one = lambda key: nn.MLP(7, 12, 8, 2, key=key)
        return eqx.filter_vmap(one)(jax.random.split(key, 3))

    def call(layer, x):
        eqx = importlib.import_module("equinox")
        run = eqx.filter_vmap(lambda m, x: m(x), in_axes=(eqx.if_array(0), None))
        return run(layer, x).mean(0)

    return equinox_layer(make, X, {"weight": "boi", "bias": "-"}, size=12, call=call)


@layer
def equinox_shared_table():
    eqx = importlib.import_module("equinox")

    class Model(eqx.Module):
        shared: Any

        def __init__(self, key):
            keys = jax.random.split(key)
            emb = eqx.nn.Embedding(20, 7, key=keys[0])
            mid = eqx.nn.Linear(7, 7, key=keys[1])
            lin = eqx.nn.Linear(7, 20, use_bias=False, key=keys[1])
            where = lambda m: m[2].weight
            get = lambda m: m[0].weight
            self.shared = eqx.nn.Shared((emb, mid, lin), where, get)

        def __call__(self, t):
            emb, mid, lin = self.shared()
            return lin(jnp.tanh(mid(emb(t))))

    model = eqx.filter_eval_shape(Model, jax.random.key(0))
    fn = lambda model, t: jax.vmap(model)(t)
    return fn, model, (T(4),), {"/1/weight": "oi", "weight": "-"}
