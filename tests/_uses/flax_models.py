"""Models of Flax NNX and Linen."""

from functools import partial

import jax
import jax.numpy as jnp
from _uses.battery import A, T, case


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
