"""Models with the right answer for every leaf of two or more axes, written before any run.

Letters per axis: i(n), o(ut), b(atch); "/n" or "/(sizes)": sections of the outputs; "-": the other
optimizer (embedding, last layer, router, table, scale, filter of one channel). "a|b": either.
"""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("KERAS_BACKEND", "jax")
import jax, jax.numpy as jnp
from functools import partial
from jax import lax

S = jax.ShapeDtypeStruct
f32, i32 = jnp.float32, jnp.int32


def A(*s, dtype=f32):
    return S(s, dtype)


def T(*s):
    return S(s, i32)


CASES = {}


def case(f):
    CASES[f.__name__] = f
    return f


def ln(x, g):
    return (
        (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-6) * g
    )


def rms(x, g):
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * g


def nnx_case(make, *inputs, call=None):
    from flax import nnx

    m = nnx.eval_shape(make)
    g, p, rest = nnx.split(m, nnx.Param, ...)

    def fn(p, *a):
        rest_ = jax.tree.map(
            lambda x: (
                jnp.zeros(x.shape, x.dtype)
                if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
                else jax.random.key(0)
            ),
            rest,
        )
        m = nnx.merge(g, p, rest_)
        return (call or (lambda m, *a: m(*a)))(m, *a)

    return fn, p, inputs


QKVO = {
    r"(query|key|value)/kernel": "ioo",
    r"/out/kernel": "iio",
    r"(query|key|value)/bias": "-",
}


@case
def nnx_lm():
    from flax import nnx

    class Block(nnx.Module):
        def __init__(s, d, r):
            s.attn = nnx.MultiHeadAttention(4, d, rngs=r, decode=False)
            s.up = nnx.Linear(d, 4 * d, rngs=r)
            s.down = nnx.Linear(4 * d, d, rngs=r)
            s.n1 = nnx.LayerNorm(d, rngs=r)
            s.n2 = nnx.LayerNorm(d, rngs=r)

        def __call__(s, x):
            x = x + s.attn(s.n1(x))
            return x + s.down(jax.nn.gelu(s.up(s.n2(x))))

    class LM(nnx.Module):
        def __init__(s, r):
            s.emb = nnx.Embed(100, 32, rngs=r)
            s.pos = nnx.Param(jnp.zeros((16, 32)))
            s.blocks = nnx.List([Block(32, r) for _ in range(2)])
            s.out = nnx.Linear(32, 100, rngs=r)

        def __call__(s, t):
            x = s.emb(t) + s.pos[...][None]
            for b in s.blocks:
                x = b(x)
            return s.out(x)

    return *nnx_case(lambda: LM(nnx.Rngs(0)), T(2, 16)), {
        "emb/": "-",
        "pos": "-",
        **QKVO,
        "up/k": "io",
        "down/k": "io",
        "^out/k": "-",
    }


@case
def nnx_tied_swiglu():
    from flax import nnx

    class M(nnx.Module):
        def __init__(s, r):
            s.emb = nnx.Embed(100, 32, rngs=r)
            s.wi = nnx.Linear(32, 128, use_bias=False, rngs=r)
            s.wo = nnx.Linear(64, 32, use_bias=False, rngs=r)
            s.n = nnx.RMSNorm(32, rngs=r)
            s.qkv = nnx.Linear(32, 96, use_bias=False, rngs=r)
            s.proj = nnx.Linear(32, 32, rngs=r)

        def __call__(s, t):
            x = s.emb(t)
            q, k, v = (
                a.reshape(*a.shape[:-1], 4, 8) for a in jnp.split(s.qkv(x), 3, -1)
            )
            x = x + s.proj(
                jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(x.shape)
            )
            g, u = jnp.split(s.wi(s.n(x)), 2, -1)
            x = x + s.wo(jax.nn.silu(g) * u)
            return s.emb.attend(x)

    return *nnx_case(lambda: M(nnx.Rngs(0)), T(2, 16)), {
        "emb": "-",
        "wi/k": "io/2",
        "wo/k": "io",
        "qkv/k": "io/3",
        "proj/k": "io",
    }


@case
def nnx_convs():
    from flax import nnx

    class M(nnx.Module):
        def __init__(s, r):
            c = partial(nnx.Conv, use_bias=False, rngs=r)
            s.stem = c(3, 16, (7, 7), strides=2)
            s.bn = nnx.BatchNorm(16, rngs=r, use_running_average=True)
            s.dw = c(16, 16, (3, 3), feature_group_count=16)
            s.pw = c(16, 32, (1, 1))
            s.grouped = c(32, 32, (3, 3), feature_group_count=4)
            s.up = nnx.ConvTranspose(32, 24, (2, 2), strides=2, rngs=r)
            s.up2 = nnx.ConvTranspose(
                24, 20, (2, 2), strides=2, transpose_kernel=True, rngs=r
            )
            s.last = nnx.Linear(20, 10, rngs=r)

        def __call__(s, x):
            x = jax.nn.relu(s.bn(s.stem(x)))
            x = s.pw(s.dw(x))
            x = jax.nn.relu(s.grouped(x))
            x = jax.nn.relu(s.up2(jax.nn.relu(s.up(x))))
            return s.last(x.mean((1, 2)))

    return *nnx_case(lambda: M(nnx.Rngs(0)), A(2, 32, 32, 3)), {
        "stem/k": "iiio|-",
        "dw/k": "-",
        "pw/k": "iiio",
        "grouped/k": "iiio/4",
        "^up/k": "iiio",
        "up2/k": "iioi",
        "last/k": "-",
    }


@case
def nnx_rnns():
    from flax import nnx

    class M(nnx.Module):
        def __init__(s, r):
            s.emb = nnx.Embed(50, 16, rngs=r)
            s.a = nnx.RNN(nnx.LSTMCell(16, 24, rngs=r), rngs=r)
            s.b = nnx.RNN(nnx.OptimizedLSTMCell(24, 20, rngs=r), rngs=r)
            s.c = nnx.RNN(nnx.GRUCell(20, 12, rngs=r), rngs=r)
            s.d = nnx.RNN(nnx.SimpleCell(12, 14, rngs=r), rngs=r)
            s.fin = nnx.Linear(14, 50, rngs=r)

        def __call__(s, t):
            return s.fin(s.d(s.c(s.b(s.a(s.emb(t))))))

    return *nnx_case(lambda: M(nnx.Rngs(0)), T(2, 9)), {
        "emb": "-",
        "^a/cell/[ih]./?_?/?k|^a/cell/.*kernel": "io",
        "^b/cell/.*kernel": "io/4",
        "^c/cell/.*kernel": "io/3",
        "^d/cell/.*kernel": "io",
        "fin/k": "-",
    }


def _nnx_scan(axis):
    from flax import nnx

    class Block(nnx.Module):
        def __init__(s, r):
            s.up = nnx.Linear(16, 48, rngs=r)
            s.down = nnx.Linear(48, 16, rngs=r)
            s.n = nnx.LayerNorm(16, rngs=r)

        def __call__(s, x):
            return x + s.down(jax.nn.relu(s.up(s.n(x))))

    ax = nnx.StateAxes({nnx.Param: axis, ...: 0})

    class M(nnx.Module):
        def __init__(s, r):
            @nnx.split_rngs(splits=4)
            @nnx.vmap(in_axes=(0,), out_axes=ax, axis_size=4)
            def make(r):
                return Block(r)

            s.inp = nnx.Linear(8, 16, rngs=r)
            s.layers = make(r)
            s.fin = nnx.Linear(16, 5, rngs=r)

        def __call__(s, x):
            @nnx.scan(in_axes=(ax, nnx.Carry), out_axes=nnx.Carry)
            def f(b, x):
                return b(x)

            return s.fin(f(s.layers, s.inp(x)))

    return nnx_case(lambda: M(nnx.Rngs(0)), A(2, 8))


@case
def nnx_scan0():
    return *_nnx_scan(0), {
        "inp/k": "io|-",
        "up/k|down/k": "bio",
        "layers/.*(bias|scale)": "-",
        "fin/k": "-",
    }


@case
def nnx_scan1():
    return *_nnx_scan(1), {
        "inp/k": "io|-",
        "up/k|down/k": "ibo",
        "layers/.*(bias|scale)": "-",
        "fin/k": "-",
    }


@case
def nnx_ensemble():
    from flax import nnx

    class M(nnx.Module):
        def __init__(s, r):
            s.a = nnx.Linear(6, 16, rngs=r)
            s.b = nnx.Linear(16, 16, rngs=r)
            s.cv = nnx.Conv(16, 12, (3,), rngs=r)
            s.c = nnx.Linear(12, 3, rngs=r)

        def __call__(s, x):
            return s.c(jax.nn.relu(s.cv(jax.nn.relu(s.b(jax.nn.relu(s.a(x)))))))

    def make():
        @nnx.split_rngs(splits=5)
        @nnx.vmap(axis_size=5)
        def f(r):
            return M(r)

        return f(nnx.Rngs(0))

    return *nnx_case(
        make,
        A(2, 7, 6),
        call=lambda m, x: nnx.vmap(lambda m, x: m(x), in_axes=(0, None))(m, x),
    ), {"^a/k": "bio|-", "^b/k": "bio", "cv/k": "biio", "^c/k": "-", "bias": "-"}


@case
def nnx_lora_einsum():
    from flax import nnx

    class M(nnx.Module):
        def __init__(s, r):
            s.l = nnx.LoRALinear(16, 24, lora_rank=4, rngs=r)
            s.e = nnx.Einsum("bti,ihd->bthd", (24, 3, 8), (3, 8), rngs=r)
            s.g = nnx.LinearGeneral((3, 8), 16, axis=(-2, -1), rngs=r)
            s.o = nnx.Linear(16, 7, rngs=r)

        def __call__(s, x):
            return s.o(jax.nn.relu(s.g(jax.nn.relu(s.e(jax.nn.relu(s.l(x)))))))

    fn, p, i = nnx_case(lambda: M(nnx.Rngs(0)), A(2, 5, 16))
    return (
        fn,
        p,
        i,
        {
            "lora_a": "io|-",
            "lora_b": "io",
            "^l/kernel": "io|-",
            "e/kernel": "ioo",
            "e/bias": "-",
            "g/kernel": "iio",
            "o/kernel": "-",
        },
    )


def linen_case(m, *inputs):
    v = jax.eval_shape(lambda *a: m.init(jax.random.key(0), *a), *inputs)
    from flax.core import unfreeze

    rest = {k: x for k, x in v.items() if k != "params"}
    rest = jax.tree.map(lambda x: jnp.ones(x.shape, x.dtype), rest)
    return (lambda p, *a: m.apply({"params": p, **rest}, *a)), v["params"], inputs


def _linen_scan(axis):
    import flax.linen as nn

    w = lambda *n: nn.with_logical_partitioning(nn.initializers.lecun_normal(), n)

    class Block(nn.Module):
        @nn.compact
        def __call__(s, x, _):
            y = nn.LayerNorm(name="pre_norm")(x)
            q, k, v = (
                nn.DenseGeneral(
                    (4, 8),
                    name=n,
                    kernel_init=w("embed", "heads", "kv"),
                    use_bias=False,
                )(y)
                for n in ("query", "key", "value")
            )
            y = jax.nn.dot_product_attention(q, k, v)
            x = x + nn.DenseGeneral(
                32,
                axis=(-2, -1),
                name="out",
                kernel_init=w("heads", "kv", "embed"),
                use_bias=False,
            )(y)
            g = nn.Dense(
                64, name="wi_0", kernel_init=w("embed", "mlp"), use_bias=False
            )(x)
            u = nn.Dense(
                64, name="wi_1", kernel_init=w("embed", "mlp"), use_bias=False
            )(x)
            return x + nn.Dense(
                32, name="wo", kernel_init=w("mlp", "embed"), use_bias=False
            )(nn.silu(g) * u), None

    class M(nn.Module):
        @nn.compact
        def __call__(s, t):
            x = nn.Embed(100, 32, name="token_embedder")(t)
            B = nn.scan(
                nn.remat(Block, prevent_cse=False),
                variable_axes={"params": axis},
                split_rngs={"params": True},
                length=3,
                in_axes=nn.broadcast,
                metadata_params={nn.PARTITION_NAME: "layers"},
            )
            x, _ = B(name="layers")(x, None)
            return nn.Dense(100, name="logits_dense")(nn.RMSNorm(name="final_norm")(x))

    return linen_case(M(), T(2, 12))


@case
def linen_scan0():
    return *_linen_scan(0), {
        "token": "-",
        "(query|key|value)/k": "bioo",
        "out/k": "biio",
        "wi_./k|wo/k": "bio",
        "norm": "-",
        "logits": "-",
    }


@case
def linen_scan1():
    return *_linen_scan(1), {
        "token": "-",
        "(query|key|value)/k": "iboo",
        "out/k": "ibio",
        "wi_./k|wo/k": "ibo",
        "norm": "-",
        "logits": "-",
    }


@case
def linen_vit_wn():
    import flax.linen as nn

    class M(nn.Module):
        @nn.compact
        def __call__(s, x):
            x = nn.Conv(32, (4, 4), strides=4, name="embedding")(x)
            x = x.reshape(x.shape[0], -1, 32)
            x = jnp.concatenate(
                [
                    jnp.tile(
                        s.param("cls", nn.initializers.zeros, (1, 1, 32)),
                        (x.shape[0], 1, 1),
                    ),
                    x,
                ],
                1,
            )
            x = x + s.param("pos_embedding", nn.initializers.zeros, (1, x.shape[1], 32))
            for i in range(2):
                y = nn.LayerNorm()(x)
                x = x + nn.MultiHeadDotProductAttention(4, name=f"mha_{i}")(y, y)
                x = x + nn.Dense(32)(
                    nn.gelu(nn.WeightNorm(nn.Dense(64))(nn.LayerNorm()(x)))
                )
            probe = jnp.tile(
                s.param("probe", nn.initializers.zeros, (1, 1, 32)), (x.shape[0], 1, 1)
            )
            x = nn.MultiHeadDotProductAttention(4, name="pool")(probe, x)
            return nn.Dense(10, name="top")(x[:, 0])

    return *linen_case(M(), A(2, 16, 16, 3)), {
        "^embedding/k": "-|iiio",
        "cls|pos|probe": "-",
        **QKVO,
        "^Dense_\\d/k": "io",
        "top/k": "-",
        "scale": "-",
    }


def eqx_case(make, *inputs, call=None):
    import equinox as eqx

    m = eqx.filter_eval_shape(make)
    p, s = eqx.partition(m, lambda x: isinstance(x, S) or eqx.is_array(x))
    return (
        (lambda p, *a: (call or (lambda m, x: jax.vmap(m)(x)))(eqx.combine(p, s), *a)),
        p,
        inputs,
    )


@case
def eqx_nets():
    import equinox as eqx

    class M(eqx.Module):
        c: eqx.nn.Conv2d
        u: eqx.nn.ConvTranspose2d
        m: eqx.nn.MLP
        g: eqx.nn.GRUCell
        l: eqx.nn.LSTMCell
        o: eqx.nn.Linear
        d: eqx.nn.Conv2d

        def __init__(s, k):
            s.c = eqx.nn.Conv2d(3, 8, 3, padding=1, key=k)
            s.u = eqx.nn.ConvTranspose2d(8, 6, 2, stride=2, key=k, use_bias=False)
            s.d = eqx.nn.Conv2d(6, 6, 3, groups=6, key=k)
            s.m = eqx.nn.MLP(6, 12, 20, 2, key=k)
            s.g = eqx.nn.GRUCell(12, 16, key=k)
            s.l = eqx.nn.LSTMCell(16, 14, key=k)
            s.o = eqx.nn.Linear(14, 5, key=k)

        def __call__(s, x):
            x = s.m(
                jax.nn.relu(s.d(jax.nn.relu(s.u(jax.nn.relu(s.c(x)))))).mean((1, 2))
            )
            h, _ = lax.scan(
                lambda h, y: (s.g(y, h),) * 2, jnp.zeros(16), jnp.tile(x, (4, 1))
            )
            c, _ = lax.scan(
                lambda c, _: (s.l(h, c), None),
                (jnp.zeros(14), jnp.zeros(14)),
                None,
                length=3,
            )
            return s.o(c[0])

    return *eqx_case(lambda: M(jax.random.key(0)), A(2, 3, 8, 8)), {
        "c/weight": "oiii|-",
        "c/bias|u/bias|d/bias": "-",
        "u/weight": "oiii",
        "d/weight": "-",
        "m/layers": "oi",
        "g/weight": "oi/3",
        "l/weight": "oi/4",
        "o/weight": "-",
    }


@case
def eqx_transformer():
    import equinox as eqx

    class M(eqx.Module):
        e: eqx.nn.Embedding
        a: eqx.nn.MultiheadAttention
        n: eqx.nn.LayerNorm
        up: eqx.nn.Linear
        dn: eqx.nn.Linear
        o: eqx.nn.Linear
        p: jax.Array
        latents: jax.Array
        x: eqx.nn.MultiheadAttention

        def __init__(s, k):
            s.e = eqx.nn.Embedding(60, 32, key=k)
            s.a = eqx.nn.MultiheadAttention(4, 32, key=k)
            s.n = eqx.nn.LayerNorm(32)
            s.up = eqx.nn.Linear(32, 64, key=k)
            s.dn = eqx.nn.Linear(64, 32, key=k)
            s.o = eqx.nn.Linear(32, 9, key=k)
            s.p = jnp.zeros((12, 32))
            s.latents = jnp.zeros((6, 32))
            s.x = eqx.nn.MultiheadAttention(4, 32, key=k)

        def __call__(s, t):
            x = jax.vmap(s.e)(t) + s.p
            y = jax.vmap(s.n)(x)
            x = x + s.a(y, y, y)
            x = x + jax.vmap(s.dn)(jax.nn.gelu(jax.vmap(s.up)(x)))
            z = s.x(s.latents, x, x)
            return s.o(z.mean(0))

    return *eqx_case(lambda: M(jax.random.key(0)), T(2, 12)), {
        "e/weight": "-",
        "^p$|latents": "-",
        "proj/weight": "oi",
        "(up|dn)/weight": "oi",
        "o/weight": "-",
    }


def hk_case(f, *inputs):
    import haiku as hk

    t = hk.without_apply_rng(hk.transform(f))
    p = jax.eval_shape(lambda *a: t.init(jax.random.key(0), *a), *inputs)
    return t.apply, p, inputs


@case
def haiku_transformer():
    import haiku as hk

    def f(t):
        x = hk.Embed(50, 32)(t) + hk.get_parameter(
            "positional_embeddings", [12, 32], init=jnp.zeros
        )
        for _ in range(2):
            y = hk.LayerNorm(-1, True, True)(x)
            x = x + hk.MultiHeadAttention(4, 8, w_init_scale=1.0, model_size=32)(
                y, y, y
            )
            x = x + hk.Linear(32)(
                jax.nn.gelu(hk.Linear(64)(hk.LayerNorm(-1, True, True)(x)))
            )
        return hk.Linear(50, name="vocab")(hk.LayerNorm(-1, True, True)(x))

    return *hk_case(f, T(2, 12)), {
        "embed/|positional": "-",
        "(query|key|value|linear|linear_\\d)/w": "io",
        "vocab/w": "-",
    }


@case
def haiku_conv_lstm():
    import haiku as hk

    def f(x):
        x = jax.nn.relu(hk.Conv2D(8, 3)(x))
        x = hk.DepthwiseConv2D(1, 3)(x)
        x = jax.nn.relu(hk.Conv2DTranspose(6, 2, 2)(x))
        x = x.mean(1)
        x, _ = (
            hk.dynamic_unroll(
                hk.LSTM(10), x, hk.LSTM(10).initial_state(2), time_major=False
            )
            if False
            else hk.dynamic_unroll(
                c := hk.LSTM(10), x, c.initial_state(2), time_major=False
            )
        )
        x, _ = hk.dynamic_unroll(
            g := hk.GRU(12), x, g.initial_state(2), time_major=False
        )
        return hk.Linear(4)(x[:, -1])

    return *hk_case(f, A(2, 8, 8, 3)), {
        "^conv2_d/w": "iiio|-",
        "depthwise": "-",
        "transpose/w": "iioi",
        "lstm/linear/w": "io/4",
        "gru/w_[ih]": "io/3",
        "^linear/w": "-",
    }


def keras_case(model, *inputs):
    tv = [S(tuple(v.shape), jnp.dtype(v.dtype)) for v in model.trainable_variables]
    ntv = [jnp.zeros(v.shape, v.dtype) for v in model.non_trainable_variables]
    names = [v.path for v in model.trainable_variables]
    assert len(set(names)) == len(names)
    p = {}
    for n, v in zip(names, tv):
        node = p
        *front, last = n.split("/")
        for k in front:
            node = node.setdefault(k, {})
        node[last] = v

    def fn(p, *a):
        get = lambda n: __import__("functools").reduce(
            lambda d, k: d[k], n.split("/"), p
        )
        return model.stateless_call([get(n) for n in names], ntv, *a)[0]

    return fn, p, inputs


@case
def keras_1d():
    import keras
    from keras import layers as L

    x = i = keras.Input((16, 6))
    x = L.Conv1D(8, 5, activation="relu")(x)
    x = L.Conv1D(12, 3, activation="relu")(x)
    x = L.Conv1DTranspose(10, 2, strides=2)(x)
    x = L.SeparableConv1D(14, 3)(x)
    x = L.Bidirectional(L.GRU(7, return_sequences=True))(x)
    x = L.LSTM(9)(x)
    x = L.Dense(11, activation="relu")(x)
    o = L.Dense(3)(x)
    return *keras_case(keras.Model(i, o), A(2, 16, 6)), {
        "conv1d(_\\d+)?/kernel": "iio|-first",
        "transpose(_\\d+)?/kernel": "ioi",
        "depthwise_kernel": "-",
        "pointwise_kernel": "iio",
        "gru.*(kernel)": "io/3",
        "gru.*bias": "-",
        "lstm.*kernel": "io/4",
        "^dense/kernel": "io",
        "^dense_1/kernel": "-",
        "bias": "-",
    }


@case
def keras_2d():
    import keras
    from keras import layers as L

    x = i = keras.Input((12, 12, 3))
    x = L.Conv2D(8, 3, use_bias=False)(x)
    x = L.BatchNormalization()(x)
    x = L.DepthwiseConv2D(3)(x)
    x = L.SeparableConv2D(16, 3)(x)
    x = L.Conv2DTranspose(10, 2)(x)
    x = L.GlobalAveragePooling2D()(x)
    o = L.Dense(5)(x)
    return *keras_case(keras.Model(i, o), A(2, 12, 12, 3)), {
        "^conv2d/kernel": "iiio|-",
        "depthwise_conv2d.*kernel|depthwise_kernel": "-",
        "pointwise_kernel": "iiio",
        "transpose.*kernel": "iioi",
        "dense/kernel": "-",
    }


@case
def keras_attention():
    import keras
    from keras import layers as L

    i = keras.Input((12,), dtype="int32")
    x = L.Embedding(40, 16)(i)
    for _ in range(2):
        y = L.MultiHeadAttention(4, 4)(L.LayerNormalization()(x), x)
        x = L.Add()([x, y])
        y = L.Dense(16)(L.Dense(32, activation="gelu")(x))
        x = L.Add()([x, y])
    y = L.EinsumDense(
        "abc,cd->abd", output_shape=(None, 24), bias_axes="d", activation="relu"
    )(x)
    o = L.Dense(40)(y)
    return *keras_case(keras.Model(i, o), T(2, 12)), {
        "embeddings": "-",
        "(query|key|value)/kernel": "ioo",
        "attention_output/kernel": "iio",
        "(query|key|value)/bias": "-",
        "dense(_[0123])?/kernel": "io",
        "einsum_dense/kernel": "io",
        "dense_4/kernel": "-",
    }


@case
def keras_efficientnet():
    import keras

    return *keras_case(
        keras.applications.EfficientNetV2B0(
            weights=None, classes=20, input_shape=(64, 64, 3)
        ),
        A(1, 64, 64, 3),
    ), {
        "dwconv|depthwise": "-",
        "stem_conv/": "iiio|-",
        "conv|expand|project|se_": "iiio",
        "predictions": "-",
    }


@case
def keras_mobilenet():
    import keras

    return *keras_case(
        keras.applications.MobileNetV3Small(
            weights=None, classes=20, input_shape=(64, 64, 3), dropout_rate=0
        ),
        A(1, 64, 64, 3),
    ), {
        "depthwise": "-",
        "^conv/": "iiio|-",
        "logits": "-",
        "conv|expand|project|squeeze": "iiio",
    }


@case
def scanned_llama_experts():
    L, E, D, F, H, K = 3, 4, 32, 48, 4, 8
    p = {
        "embedder": A(90, D),
        "layers": {
            "wq": A(L, D, H, K),
            "wkv": A(L, 2, D, 2, K),
            "wo": A(L, H, K, D),
            "n1": A(L, D),
            "n2": A(L, D),
            "gate": A(L, D, E),
            "w1": A(L, E, D, 2 * F),
            "w2": A(L, E, F, D),
        },
        "norm": A(D),
        "unembed": A(D, 90),
    }

    def f(p, t):
        x = p["embedder"][t]

        def body(x, w):
            y = rms(x, w["n1"])
            q = jnp.einsum("btd,dhk->bthk", y, w["wq"])
            k, v = jnp.einsum("btd,cdhk->cbthk", y, w["wkv"])
            s, c = jnp.split(q, 2, -1)
            q = jnp.concatenate([s * 0.5 - c, c * 0.5 + s], -1)
            x = x + jnp.einsum(
                "bthk,hkd->btd",
                jax.nn.dot_product_attention(q, k, v, is_causal=True),
                w["wo"],
            )
            y = rms(x, w["n2"])
            y = y.reshape(-1, D)
            pr = jax.nn.softmax(y @ w["gate"])
            g, idx = lax.top_k(pr, 2)
            disp = jnp.einsum("ske->se", jax.nn.one_hot(idx, E) * g[..., None])
            m = disp > 0
            z = jnp.einsum("gd,ge->egd", y, m.astype(y.dtype))
            h = jnp.einsum("egd,edf->egf", z, w["w1"])
            a, u = jnp.split(h, 2, -1)
            z = jnp.einsum("egf,efd->egd", jax.nn.silu(a) * u, w["w2"])
            return x + jnp.einsum("egd,ge->gd", z, disp).reshape(x.shape), None

        x, _ = lax.scan(jax.checkpoint(body), x, p["layers"])
        return rms(x, p["norm"]) @ p["unembed"]

    return (
        f,
        p,
        (T(2, 10),),
        {
            "embedder|n1|n2|unembed": "-",
            "wq": "bioo",
            "wkv": "bbioo",
            "wo": "biio",
            "gate": "-",
            "w1": "bbio/2",
            "w2": "bbio",
        },
    )


@case
def mla():
    D, H, R, N, P, V = 32, 4, 12, 8, 4, 8
    p = {
        "emb": A(70, D),
        "q_a": A(D, 16),
        "q_norm": A(16),
        "q_b": A(16, H * (N + P)),
        "kv_a": A(D, R + P),
        "kv_norm": A(R),
        "kv_b": A(R, H * (N + V)),
        "o": A(H * V, D),
        "fin": A(D, 70),
    }

    def f(p, t):
        x = p["emb"][t]
        B, n, _ = x.shape
        q = (rms(x @ p["q_a"], p["q_norm"]) @ p["q_b"]).reshape(B, n, H, N + P)
        qn, qp = q[..., :N], q[..., N:]
        c = x @ p["kv_a"]
        c, kp = c[..., :R], c[..., R:]
        kv = (rms(c, p["kv_norm"]) @ p["kv_b"]).reshape(B, n, H, N + V)
        k, v = kv[..., :N], kv[..., N:]
        s = jnp.einsum("bthk,bshk->bhts", qn, k) + jnp.einsum("bthk,bsk->bhts", qp, kp)
        y = jnp.einsum("bhts,bshk->bthk", jax.nn.softmax(s), v)
        return (x + y.reshape(B, n, H * V) @ p["o"]) @ p["fin"]

    return (
        f,
        p,
        (T(2, 10),),
        {"emb|fin": "-", "q_a|q_b|kv_b|^o$": "io", "kv_a": "io/(12, 4)"},
    )


@case
def fno():
    p = {
        "lift": {"w": A(3, 16)},
        "spec0": {"weights": A(16, 16, 5, 5, dtype=jnp.complex64)},
        "spec1": {"re": A(16, 16, 5, 5), "im": A(16, 16, 5, 5)},
        "spec2": {"w": A(16, 16, 5, 5, 2)},
        "skip": {"w": A(16, 16)},
        "out": {"w": A(16, 1)},
        "proj": {"w": A(16, 24)},
        "out2": {"w": A(24, 2)},
    }

    def f(p, x):
        x = x @ p["lift"]["w"]
        ws = [
            p["spec0"]["weights"],
            p["spec1"]["re"] + 1j * p["spec1"]["im"],
            p["spec2"]["w"][..., 0] + 1j * p["spec2"]["w"][..., 1],
        ]
        for w in ws:
            z = jnp.fft.rfft2(x, axes=(1, 2))[:, :5, :5]
            z = jnp.einsum("bxyi,ioxy->bxyo", z, w)
            x = jax.nn.gelu(
                jnp.fft.irfft2(
                    jnp.pad(z, ((0, 0), (0, 5), (0, 1), (0, 0))),
                    s=x.shape[1:3],
                    axes=(1, 2),
                )
                + x @ p["skip"]["w"]
            )
        return jax.nn.gelu(x @ p["proj"]["w"]) @ p["out2"]["w"], x @ p["out"]["w"]

    return (
        f,
        p,
        (A(2, 10, 10, 3),),
        {
            "lift": "io|-",
            "spec0": "iobb",
            "spec1": "iobb",
            "spec2": "iobbb",
            "skip": "io",
            "^out": "-",
            "proj": "io",
        },
    )


@case
def kan():
    p = [
        {"base": A(o, i), "spline": A(o, i, 6), "scaler": A(o, i)}
        for i, o in ((5, 12), (12, 12), (12, 3))
    ]

    def f(p, x):
        for l in p:
            b = jnp.exp(-((x[..., None] - jnp.linspace(-1, 1, 6)) ** 2))
            x = jax.nn.silu(x) @ l["base"].T + jnp.einsum(
                "big,oig->bo", b, l["spline"] * l["scaler"][..., None]
            )
        return x

    return (
        f,
        p,
        (A(4, 5),),
        {
            "^0/base": "oi|-",
            "^0/spline": "oii|-",
            "^1/base": "oi",
            "^1/spline": "oii",
            "^2/": "-",
            "scaler": "-|oi",
        },
    )


@case
def e3nn_like():
    p = {
        "emb": A(10, 8),
        "w_uvw": A(8, 6, 8),
        "w_elem": A(10, 4, 8),
        "lin0": A(8, 8),
        "lin1": A(8, 6),
        "radial0": A(5, 16),
        "radial1": A(16, 8),
        "out": A(8, 1),
        "out2": A(8, 3),
    }

    def f(p, z, y, r):
        x = p["emb"][z]
        x = jnp.einsum("zu,zv,uvw->zw", x, y, p["w_uvw"])
        x = x @ p["lin0"] * (jax.nn.silu(r @ p["radial0"]) @ p["radial1"])
        B = jnp.stack([x, x**2, x**3, x**4], 1)
        x = jnp.einsum("zpc,zpc->zc", p["w_elem"][z], B)
        v = x @ p["lin1"]
        x = x + jnp.einsum("zv,uvw,zu->zw", v, p["w_uvw"], x)
        return x @ p["out"], x @ p["out2"]

    return (
        f,
        p,
        (T(7), A(7, 6), A(7, 5)),
        {
            "emb": "-",
            "w_uvw": "iio|-",
            "w_elem": "-",
            "lin": "io",
            "radial0": "io|-",
            "radial1": "io",
            "out": "-",
        },
    )


@case
def mamba():
    D, I, N, R, K = 16, 32, 4, 6, 4
    p = {
        "emb": A(50, D),
        "in_proj": A(D, 2 * I),
        "conv1d": {"kernel": A(K, 1, I), "bias": A(I)},
        "x_proj": A(I, R + 2 * N),
        "dt_proj": A(R, I),
        "A_log": A(I, N),
        "D": A(I),
        "out_proj": A(I, D),
        "tap": A(I, K),
    }

    def f(p, t):
        x = p["emb"][t]
        u, z = jnp.split(x @ p["in_proj"], 2, -1)
        u = jax.nn.silu(
            lax.conv_general_dilated(
                u,
                p["conv1d"]["kernel"],
                (1,),
                [(K - 1, 0)],
                dimension_numbers=("NWC", "WIO", "NWC"),
                feature_group_count=I,
            )
            + p["conv1d"]["bias"]
        )
        u = sum(
            jnp.pad(u, ((0, 0), (j, 0), (0, 0)))[:, : u.shape[1]] * p["tap"][:, j]
            for j in range(K)
        )
        dt, Bm, C = jnp.split(u @ p["x_proj"], [R, R + N], -1)
        dt = jax.nn.softplus(dt @ p["dt_proj"])
        a = jnp.exp(-dt[..., None] * jnp.exp(p["A_log"]))

        def step(h, s):
            h = s[0] * h + s[1]
            return h, jnp.einsum("bdn,bn->bd", h, s[2])

        tr = lambda v: jnp.moveaxis(v, 1, 0)
        _, y = lax.scan(
            step,
            jnp.zeros((x.shape[0], I, N)),
            (tr(a), tr(dt[..., None] * Bm[:, :, None] * u[..., None]), tr(C)),
        )
        return (x + (tr(y) + u * p["D"]) * jax.nn.silu(z) @ p["out_proj"]) @ p["emb"].T

    return (
        f,
        p,
        (T(2, 9),),
        {
            "emb": "-",
            "in_proj": "io/2",
            "conv1d/k|tap|A_log": "-",
            "x_proj": "io/(6, 4, 4)",
            "dt_proj|out_proj": "io",
        },
    )


@case
def rwkv7():
    D, H = 32, 4
    p = {
        "emb/weight".replace("/", "_"): A(60, D),
        "att": {
            **{n: A(D) for n in ("x_r", "x_k")},
            "time_mix": A(2, 1, D),
            "w1": A(D, 8),
            "w2": A(8, D),
            "r_k": A(H, D // H),
            **{
                n: {"weight": A(D, D)} for n in ("receptance", "key", "value", "output")
            },
        },
        "ffn": {"key": {"weight": A(4 * D, D)}, "value": {"weight": A(D, 4 * D)}},
        "head": {"weight": A(60, D)},
        "ln": A(D),
    }

    def f(p, t):
        x = p["emb_weight"][t]
        a = p["att"]
        sh = jnp.pad(x, ((0, 0), (1, 0), (0, 0)))[:, :-1]
        xr, xk = (x + (sh - x) * a["time_mix"][j] for j in range(2))
        hd = lambda v: v.reshape(*v.shape[:-1], H, D // H)
        w = jnp.exp(-jnp.exp(jnp.tanh(xr @ a["w1"]) @ a["w2"]))
        r, k, v = (
            hd(y @ a[n]["weight"].T)
            for y, n in ((xr, "receptance"), (xk, "key"), (x, "value"))
        )

        def step(s, e):
            r, w, k, v = e
            s = s * w[..., None] + k[..., None] * v[..., None, :]
            return s, jnp.einsum("bhk,bhkv->bhv", r, s)

        tr = lambda v: jnp.moveaxis(v, 1, 0)
        _, y = lax.scan(
            step,
            jnp.zeros((x.shape[0], H, D // H, D // H)),
            (tr(r), tr(hd(w)), tr(k), tr(v)),
        )
        y = tr(y) + (r * k * a["r_k"]).sum(-1, keepdims=True) * v
        x = x + y.reshape(x.shape) @ a["output"]["weight"].T
        x = (
            x
            + jnp.square(jax.nn.relu(x @ p["ffn"]["key"]["weight"].T))
            @ p["ffn"]["value"]["weight"].T
        )
        return ln(x, p["ln"]) @ p["head"]["weight"].T

    return (
        f,
        p,
        (T(2, 7),),
        {"emb|head": "-", "time_mix|r_k": "-", "att/w[12]": "io", "weight": "oi"},
    )


@case
def xlstm_headwise():
    p = {
        "emb": A(50, 32),
        **{n: {"kernel": A(8, 4, 4)} for n in ("q_proj", "k_proj", "v_proj")},
        "big": {"kernel": A(2, 16, 16)},
        "igate": {"kernel": A(32, 4), "bias": A(4)},
        "down": {"kernel": A(32, 32)},
        "fin": {"kernel": A(32, 50)},
    }

    def f(p, t):
        x = p["emb"][t]
        hw = lambda x, w: jnp.einsum(
            "...hd,hod->...ho", x.reshape(*x.shape[:-1], w.shape[0], -1), w
        ).reshape(x.shape)
        q, k, v = (hw(x, p[n]["kernel"]) for n in ("q_proj", "k_proj", "v_proj"))
        h4 = lambda a: a.reshape(*a.shape[:-1], 4, 8)
        g = jax.nn.sigmoid(x @ p["igate"]["kernel"] + p["igate"]["bias"])
        s = (
            jnp.einsum("bthd,bshd->bhts", h4(q), h4(k))
            * jnp.moveaxis(g, -1, 1)[:, :, None]
        )
        y = jnp.einsum("bhts,bshd->bthd", s, h4(v)).reshape(x.shape)
        x = x + hw(y, p["big"]["kernel"])
        return (x + y @ p["down"]["kernel"]) @ p["fin"]["kernel"]

    return (
        f,
        p,
        (T(2, 7),),
        {"emb|fin": "-", "[qkv]_proj": "boi", "big": "boi", "igate|down": "io"},
    )


@case
def dit():
    D = 32
    p = {
        "x_embed": A(4, 4, 3, D),
        "pos": A(16, D),
        "t1": A(16, D),
        "t2": A(D, D),
        "y": A(11, D),
        "blocks": {
            "ada": A(2, D, 6 * D),
            "qkv": A(2, D, 3 * D),
            "proj": A(2, D, D),
            "fc1": {"g": A(2, 4 * D), "v": A(2, D, 4 * D)},
            "fc2": A(2, 4 * D, D),
        },
        "ada": A(D, 2 * D),
        "final": A(D, 48),
    }

    def f(p, x, t, y):
        x = (
            lax.conv_general_dilated(
                x,
                p["x_embed"],
                (4, 4),
                "VALID",
                dimension_numbers=("NHWC", "HWIO", "NHWC"),
            ).reshape(x.shape[0], -1, D)
            + p["pos"]
        )
        e = jnp.exp(jnp.arange(8.0))
        c = t[:, None] * e
        c = jnp.concatenate([jnp.sin(c), jnp.cos(c)], -1)
        c = jax.nn.silu(c @ p["t1"]) @ p["t2"] + p["y"][y]
        mod = lambda x, s, b: ln(x, 1.0) * (1 + s[:, None]) + b[:, None]

        def body(x, w):
            s1, b1, g1, s2, b2, g2 = jnp.split(jax.nn.silu(c) @ w["ada"], 6, -1)
            q, k, v = jnp.moveaxis(
                (mod(x, s1, b1) @ w["qkv"]).reshape(*x.shape[:-1], 3, 4, 8), 2, 0
            )
            x = x + g1[:, None] * (
                jax.nn.dot_product_attention(q, k, v).reshape(x.shape) @ w["proj"]
            )
            v = w["fc1"]["v"]
            fc1 = v * (w["fc1"]["g"] / jnp.linalg.norm(v, axis=0))
            return x + g2[:, None] * (
                jax.nn.gelu(mod(x, s2, b2) @ fc1) @ w["fc2"]
            ), None

        x, _ = lax.scan(body, x, p["blocks"])
        s, b = jnp.split(c @ p["ada"], 2, -1)
        return mod(x, s, b) @ p["final"]

    return (
        f,
        p,
        (A(2, 16, 16, 3), A(2), T(2)),
        {
            "x_embed": "iiio|-",
            "pos|^y$": "-",
            "t1": "io|-",
            "t2": "io",
            "blocks/ada": "bio/6",
            "qkv": "bio/3",
            "proj": "bio",
            "fc1/g": "-",
            "fc1/v": "bio",
            "fc2": "bio",
            "^ada": "io/2",
            "final": "-",
        },
    )


@case
def alphafold():
    C, H, K = 16, 2, 8
    p = {
        "relpos": A(9, C),
        "msa": A(11, C),
        "tri": {"gate": A(C, C), "proj": A(C, 2 * C), "out": A(C, C), "n": A(C)},
        "att": {
            "q": A(C, H, K),
            "k": A(C, H, K),
            "v": A(C, H, K),
            "bias": A(C, H),
            "g": A(C, H, K),
            "g_b": A(H, K),
            "o": A(H, K, C),
        },
        "outer": {"l": A(C, 6), "r": A(C, 6), "o": A(6, 6, C)},
        "disto": A(C, 12),
    }

    def f(p, a):
        z = p["relpos"][jnp.clip(jnp.arange(7)[:, None] - jnp.arange(7) + 4, 0, 8)]
        m = jax.nn.one_hot(a, 11) @ p["msa"]
        o = p["outer"]
        z = (
            z
            + jnp.einsum(
                "iab,abc->ic", jnp.einsum("ia,ib->iab", m @ o["l"], m @ o["r"]), o["o"]
            )[:, None]
        )
        t = p["tri"]
        y = ln(z, t["n"])
        l, r = jnp.split(y @ t["proj"], 2, -1)
        z = z + jax.nn.sigmoid(y @ t["gate"]) * (
            jnp.einsum("ikc,jkc->ijc", l, r) @ t["out"]
        )
        a = p["att"]
        q, k, v = (jnp.einsum("ijc,chk->ijhk", z, a[n]) for n in "qkv")
        s = (
            jnp.einsum("ijhk,ilhk->ihjl", q, k)
            + jnp.moveaxis(z @ a["bias"], -1, 0)[None]
        )
        y = jnp.einsum("ihjl,ilhk->ijhk", jax.nn.softmax(s), v) * jax.nn.sigmoid(
            jnp.einsum("ijc,chk->ijhk", z, a["g"]) + a["g_b"]
        )
        z = z + jnp.einsum("ijhk,hkc->ijc", y, a["o"])
        return z @ p["disto"]

    return (
        f,
        p,
        (T(7),),
        {
            "relpos": "-",
            "msa": "-",
            "tri/(gate|out)": "io",
            "tri/proj": "io/2",
            "att/[qkvg]$": "ioo",
            "att/bias": "io",
            "g_b": "-",
            "att/o": "iio",
            "outer/[lr]": "io",
            "outer/o": "iio",
            "disto": "-",
        },
    )


@case
def gnn_gat():
    p = {
        "w0": A(6, 4, 8),
        "att0": A(4, 8),
        "att1": A(4, 8),
        "w1": {"kernel": A(32, 32), "self": A(32, 32)},
        "rel": A(5, 32, 32),
        "bases": A(3, 32, 32),
        "coef": A(5, 3),
        "out": A(32, 4),
    }

    def f(p, x, s, r, e):
        h = jnp.einsum("ni,ihd->nhd", x, p["w0"])
        a = jax.nn.leaky_relu((h * p["att0"]).sum(-1)[s] + (h * p["att1"]).sum(-1)[r])
        a = jnp.exp(a)
        a = a / jax.ops.segment_sum(a, r, 9)[r]
        h = jax.ops.segment_sum(a[..., None] * h[s], r, 9).reshape(9, 32)
        h = jax.nn.relu(
            jax.ops.segment_sum(h[s] @ p["w1"]["kernel"], r, 9) + h @ p["w1"]["self"]
        )
        h = jax.nn.relu(
            jax.ops.segment_sum(jnp.einsum("ed,edf->ef", h[s], p["rel"][e]), r, 9)
        )
        w = jnp.einsum("rb,bio->rio", p["coef"], p["bases"])
        hr = jnp.einsum("nd,rdf->rnf", h, w)
        h = jax.nn.relu(hr.sum(0))
        return h @ p["out"]

    return (
        f,
        p,
        (A(9, 6), T(20), T(20), T(20)),
        {
            "w0": "ioo|-",
            "att": "-",
            "w1": "io",
            "rel": "bio",
            "bases": "bio",
            "coef": "-|oi|io",
            "out": "-",
        },
    )


@case
def hypernet():
    p = {
        "z": {"a": A(4, 16), "b": A(16, 16)},
        "gen_w": A(16, 8, 12),
        "gen_b": A(16, 12),
        "gen2": A(16, 12 * 5),
        "film": A(16, 24),
    }

    def f(p, x, c):
        z = jnp.tanh(jnp.tanh(c @ p["z"]["a"]) @ p["z"]["b"])
        w = jnp.einsum("bz,zio->bio", z, p["gen_w"])
        h = jax.nn.relu(jnp.einsum("bi,bio->bo", x, w) + z @ p["gen_b"])
        s, t = jnp.split(z @ p["film"], 2, -1)
        h = h * s + t
        return jnp.einsum("bi,bio->bo", h, (z @ p["gen2"]).reshape(-1, 12, 5))

    return (
        f,
        p,
        (A(3, 8), A(3, 4)),
        {
            "z/a": "io|-",
            "z/b": "io",
            "gen_w": "ioo",
            "gen_b": "io",
            "gen2": "-|io",
            "film": "io/2",
        },
    )


@case
def torch_layout():
    p = {
        "conv1": {"weight": A(16, 3, 3, 3)},
        "bn1": {"weight": A(16), "bias": A(16)},
        "conv2": {"weight": A(32, 16, 3, 3)},
        "dw": {"weight": A(32, 1, 3, 3)},
        "pw": {"weight": A(24, 32, 1, 1)},
        "up": {"weight": A(24, 20, 2, 2)},
        "c1d": {"weight": A(20, 20, 5)},
        "fc1": {"weight": A(40, 20)},
        "fc": {"weight": A(10, 40)},
    }

    def f(p, x):
        c = lambda x, w, g=1: lax.conv_general_dilated(
            x, w, (1,) * (w.ndim - 2), "SAME", feature_group_count=g
        )
        x = (
            c(x, p["conv1"]["weight"]) * p["bn1"]["weight"][:, None, None]
            + p["bn1"]["bias"][:, None, None]
        )
        x = jax.nn.relu(c(jax.nn.relu(x), p["conv2"]["weight"]))
        x = jax.nn.relu(c(c(x, p["dw"]["weight"], 32), p["pw"]["weight"]))
        x = lax.conv_transpose(
            x,
            p["up"]["weight"],
            (2, 2),
            "SAME",
            dimension_numbers=("NCHW", "OIHW", "NCHW"),
            transpose_kernel=True,
        )
        x = jax.nn.relu(c(x.mean(-1), p["c1d"]["weight"])).mean(-1)
        return jax.nn.relu(x @ p["fc1"]["weight"].T) @ p["fc"]["weight"].T

    return (
        f,
        p,
        (A(2, 3, 8, 8),),
        {
            "conv1": "oiii|-",
            "conv2|pw": "oiii",
            "dw": "-",
            "up": "ioii",
            "c1d": "oii",
            "fc1": "oi",
            "fc/": "-",
        },
    )


@case
def detr_queries():
    p = {
        "patch": A(48, 32),
        "query_pos": A(5, 32),
        "sa": {n: A(32, 32) for n in "qkvo"},
        "ca": {n: A(32, 32) for n in "qkvo"},
        "cls": A(32, 9),
        "box1": A(32, 32),
        "box2": A(32, 4),
    }

    def f(p, x):
        m = x @ p["patch"]
        tgt = jnp.zeros((x.shape[0], 5, 32))
        qp = jnp.broadcast_to(p["query_pos"], tgt.shape)

        def att(w, a, b, v):
            h = lambda y: y.reshape(*y.shape[:-1], 4, 8)
            return (
                jax.nn.dot_product_attention(
                    h(a @ w["q"]), h(b @ w["k"]), h(v @ w["v"])
                ).reshape(a.shape)
                @ w["o"]
            )

        tgt = tgt + att(p["sa"], tgt + qp, tgt + qp, tgt)
        tgt = ln(tgt, 1.0)
        tgt = tgt + att(p["ca"], tgt + qp, m, m)
        return tgt @ p["cls"], jax.nn.relu(tgt @ p["box1"]) @ p["box2"]

    return (
        f,
        p,
        (A(2, 16, 48),),
        {
            "patch": "io|-",
            "query_pos": "-",
            "sa|ca": "io",
            "cls|box2": "-",
            "box1": "io",
        },
    )


@case
def lora_and_factors():
    p = {
        "emb": A(50, 24),
        "w0": A(24, 24),
        "a": A(24, 4),
        "b": A(4, 24),
        "u": A(24, 6),
        "s": A(6),
        "v": A(6, 24),
        "q": A(24, 24),
        "scale": A(1, 24),
        "base": A(24, 48),
        "la": A(24, 4),
        "lb": A(4, 48),
        "dn": A(48, 24),
        "out": A(24, 50),
    }

    def f(p, t):
        x = p["emb"][t]
        x = x + jax.nn.relu(x @ (p["w0"] + 2.0 * p["a"] @ p["b"]))
        x = x + jax.nn.relu((x @ p["u"] * p["s"]) @ p["v"])
        s = jnp.max(jnp.abs(p["q"]), 0, keepdims=True) / 127
        qd = lax.stop_gradient(jnp.round(p["q"] / s) * s - p["q"]) + p["q"]
        x = x + jax.nn.relu((x * p["scale"]) @ qd.astype(jnp.bfloat16).astype(f32))
        h = jax.nn.relu(x @ p["base"] + x @ p["la"] @ p["lb"])
        return (x + h @ p["dn"]) @ p["out"]

    return (
        f,
        p,
        (T(2, 6),),
        {"emb|out": "-", "scale": "-", "w0|^a$|^b$|^u$|^v$|^q$|base|la|lb|dn": "io"},
    )


@case
def relative_positions():
    p = {
        "emb": A(40, 32),
        "t5": A(8, 4),
        "shaw_k": A(15, 8),
        "skew": A(8, 8),
        "wq": A(32, 4, 8),
        "wk": A(32, 4, 8),
        "wv": A(32, 32),
        "wo": A(32, 32),
        "wr": A(32, 32),
        "u": A(4, 8),
        "out": A(32, 40),
    }

    def f(p, t):
        x = p["emb"][t]
        n = 8
        rel = jnp.arange(n)[:, None] - jnp.arange(n) + 7
        q, k = (jnp.einsum("btd,dhk->bthk", x, p[w]) for w in ("wq", "wk"))
        v = (x @ p["wv"]).reshape(k.shape)
        s = (
            jnp.einsum("bthk,bshk->bhts", q + p["u"], k)
            + jnp.moveaxis(p["t5"][rel // 2], -1, 0)
            + jnp.einsum("bthk,tsk->bhts", q, p["shaw_k"][rel])
            + jnp.einsum("bthk,sk->bhts", q, p["skew"])
        )
        r = jnp.sin(jnp.arange(8.0)[:, None] * jnp.linspace(0.1, 1, 32))
        s = s + jnp.einsum("bthk,shk->bhts", q, (r @ p["wr"]).reshape(8, 4, 8))
        return (
            x
            + jnp.einsum("bhts,bshk->bthk", jax.nn.softmax(s), v).reshape(x.shape)
            @ p["wo"]
        ) @ p["out"]

    return (
        f,
        p,
        (T(2, 8),),
        {"emb|out|t5|shaw_k|skew|^u$": "-", "wq|wk": "ioo", "wv|wo": "io", "wr": "io"},
    )


@case
def ppo_vae_heads():
    p = {
        "enc": A(10, 32),
        "mu": A(32, 6),
        "logvar": A(32, 6),
        "dec": A(6, 32),
        "recon": A(32, 10),
        "pi1": A(6, 32),
        "pi": A(32, 4),
        "v1": A(6, 32),
        "v": A(32, 1),
        "log_std": A(1, 4),
    }

    def loss(p, x, a):
        h = jax.nn.relu(x @ p["enc"])
        mu, lv = h @ p["mu"], h @ p["logvar"]
        z = mu + jnp.exp(lv / 2) * 0.1
        rec = jax.nn.relu(z @ p["dec"]) @ p["recon"]
        lp = -(
            ((jnp.tanh(z @ p["pi1"]) @ p["pi"] - a) / jnp.exp(p["log_std"])) ** 2
        ).sum(-1)
        v = (jnp.tanh(z @ p["v1"]) @ p["v"])[:, 0]
        return (
            ((rec - x) ** 2).mean()
            + (lp * v).mean()
            + 0.5 * (mu**2 + jnp.exp(lv) - lv).mean()
            + 1e-4 * sum(jnp.sum(w**2) for w in jax.tree.leaves(p))
        )

    return (
        loss,
        p,
        (A(5, 10), A(5, 4)),
        {"enc": "io|-", "mu|logvar|dec|pi1|v1": "io", "recon|pi$|^v$|log_std": "-"},
    )


@case
def pinn_and_maml():
    p = {
        "w0": A(2, 16),
        "w1": A(16, 20),
        "w2": A(20, 16),
        "w3": A(16, 3),
        "rff": A(2, 8),
    }

    def loss(p, x, y):
        u = lambda p, x: (
            jnp.tanh(jnp.tanh(jnp.tanh(x @ p["w0"]) @ p["w1"]) @ p["w2"]) @ p["w3"]
            + 0 * (x @ p["rff"]).sum()
        )
        lap = jax.vmap(lambda x: jnp.trace(jax.hessian(lambda x: u(p, x)[0])(x)))(x)
        q = jax.tree.map(
            lambda w, g: w - 0.1 * g,
            p,
            jax.grad(lambda p: ((u(p, x) - y) ** 2).mean())(p),
        )
        return (lap**2).mean() + ((u(q, x) - y) ** 2).mean()

    return (
        loss,
        p,
        (A(5, 2), A(5, 3)),
        {"w0": "io|-", "w1|w2": "io", "w3": "-", "rff": "io|-"},
    )


@case
def tensor_parallel():
    from jax.sharding import PartitionSpec as P

    mesh = jax.make_mesh((1,), ("m",), axis_types=(jax.sharding.AxisType.Auto,))
    p = {
        "emb": A(30, 16),
        "qkv": A(16, 3, 4, 4),
        "o": A(4, 4, 16),
        "up": A(16, 48),
        "down": A(48, 16),
        "out": A(16, 30),
    }

    def f(p, t):
        x = p["emb"][t]

        def block(x, qkv, o, up, down):
            q, k, v = jnp.moveaxis(jnp.einsum("btd,dchk->btchk", x, qkv), 2, 0)
            y = jnp.einsum("bthk,hkd->btd", jax.nn.dot_product_attention(q, k, v), o)
            x = x + lax.psum(y, "m")
            return x + lax.psum(jax.nn.relu(x @ up) @ down, "m")

        x = jax.shard_map(
            block,
            mesh=mesh,
            in_specs=(P(), P(None, None, "m"), P("m"), P(None, "m"), P("m")),
            out_specs=P(),
        )(x, p["qkv"], p["o"], p["up"], p["down"])
        return x @ p["out"]

    return (
        f,
        p,
        (T(2, 6),),
        {"emb|out": "-", "qkv": "iboo|iooo/3", "^o$": "iio", "up|down": "io"},
    )


@case
def loops_and_branches():
    p = {
        "emb": A(30, 16),
        "stack": A(16, 3, 16),
        "deep": {"up": A(4, 16, 32), "down": A(4, 32, 16)},
        "br": {"a": A(16, 16), "b": A(16, 16)},
        "cell": {"wx": A(16, 24), "wh": A(24, 24)},
        "out": A(24, 30),
    }

    def f(p, t):
        x = p["emb"][t]
        for i in range(3):
            x = x + jnp.tanh(x @ p["stack"][:, i])
        g = lambda i, x: (
            x
            + jax.nn.relu(x @ lax.dynamic_index_in_dim(p["deep"]["up"], i, 0, False))
            @ p["deep"]["down"][i]
        )
        x = lax.fori_loop(0, 4, g, x)
        x = lax.cond(
            t.sum() > 3, lambda x: x @ p["br"]["a"], lambda x: x @ p["br"]["b"], x
        )
        h, _ = lax.scan(
            lambda h, y: (jnp.tanh(y @ p["cell"]["wx"] + h @ p["cell"]["wh"]),) * 2,
            jnp.zeros((x.shape[0], 24)),
            jnp.moveaxis(x, 1, 0),
        )
        return h @ p["out"]

    return (
        f,
        p,
        (T(2, 6),),
        {"emb|out": "-", "stack": "ibo", "deep": "bio", "br": "io", "cell": "io"},
    )


@case
def ragged_moe():
    p = {
        "emb": A(30, 16),
        "router": A(16, 4),
        "wi": A(4, 16, 40),
        "wo": A(4, 20, 16),
        "shared": A(16, 16),
        "mod": A(16, 1),
        "out": A(16, 30),
    }

    def f(p, t):
        x = p["emb"][t].reshape(-1, 16)
        pr = jax.nn.sigmoid(x @ p["router"])
        w, e = lax.top_k(pr, 2)
        e = e.reshape(-1)
        order = jnp.argsort(e)
        xs = jnp.repeat(x, 2, 0)[order]
        n = jnp.bincount(e, length=4)
        a, b = jnp.split(lax.ragged_dot(xs, p["wi"], n), 2, -1)
        y = lax.ragged_dot(jax.nn.silu(a) * b, p["wo"], n)
        y = (y[jnp.argsort(order)].reshape(-1, 2, 16) * w[..., None]).sum(1)
        return (x + y + jax.nn.sigmoid(x @ p["mod"]) * (x @ p["shared"])) @ p["out"]

    return (
        f,
        p,
        (T(2, 6),),
        {"emb|out|router|mod": "-", "wi": "bio/2", "wo": "bio", "shared": "io"},
    )


@case
def keras_convlstm():
    import keras
    from keras import layers as L

    x = i = keras.Input((4, 8, 8, 3))
    x = L.ConvLSTM2D(6, 3, return_sequences=True)(x)
    x = L.ConvLSTM2D(5, 3)(x)
    x = L.Flatten()(x)
    o = L.Dense(3)(x)
    return *keras_case(keras.Model(i, o), A(2, 4, 8, 8, 3)), {
        "dense/kernel": "-",
        "kernel": "iiio/4",
    }


@case
def soft_moe_swin():
    p = {
        "emb": A(16, 32),
        "phi": A(32, 3, 2),
        "experts": {"fc1": A(3, 32, 48), "fc2": A(3, 48, 32)},
        "cpb": {"w1": A(2, 16), "w2": A(16, 4)},
        "qkv": A(32, 96),
        "tau": A(4, 1, 1),
        "gate": A(32, 3),
        "dense": A(3, 32, 32),
        "out": A(32, 5),
    }

    def f(p, x):
        x = x @ p["emb"]
        lg = jnp.einsum("bnd,dep->bnep", x, p["phi"])
        d, c = (
            jax.nn.softmax(lg, 1),
            jax.nn.softmax(lg.reshape(*lg.shape[:2], -1), -1).reshape(lg.shape),
        )
        z = jnp.einsum("bnep,bnd->bepd", d, x)
        z = jnp.einsum(
            "bepf,efd->bepd",
            jax.nn.gelu(jnp.einsum("bepd,edf->bepf", z, p["experts"]["fc1"])),
            p["experts"]["fc2"],
        )
        x = x + jnp.einsum("bnep,bepd->bnd", c, z)
        g = jnp.stack(
            jnp.meshgrid(jnp.linspace(-1, 1, 6), jnp.linspace(-1, 1, 6), indexing="ij"),
            -1,
        )
        bias = jax.nn.relu(g @ p["cpb"]["w1"]) @ p["cpb"]["w2"]
        q, k, v = jnp.moveaxis((x @ p["qkv"]).reshape(*x.shape[:2], 3, 4, 8), 2, 0)
        s = jnp.einsum("bthk,bshk->bhts", q, k) * jnp.exp(p["tau"]) + jnp.moveaxis(
            bias, -1, 0
        )
        x = x + jnp.einsum("bhts,bshk->bthk", jax.nn.softmax(s), v).reshape(x.shape)
        gt = jax.nn.softmax(x @ p["gate"])
        x = x + jnp.einsum(
            "bte,bteo->bto", gt, jnp.einsum("bti,eio->bteo", x, p["dense"])
        )
        return x.mean(1) @ p["out"]

    return (
        f,
        p,
        (A(2, 6, 16),),
        {
            "^emb": "io|-",
            "phi": "-|ioo",
            "experts": "bio",
            "cpb/w1": "io|-",
            "cpb/w2": "io",
            "qkv": "io/3",
            "tau|out": "-",
            "gate": "-",
            "dense": "bio",
        },
    )
