"""Models of Equinox and Haiku."""

import jax
import jax.numpy as jnp
from _uses.battery import A, S, T, case
from jax import lax


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
            x = x + hk.MultiHeadAttention(
                4, 8, w_init=hk.initializers.VarianceScaling(1.0), model_size=32
            )(y, y, y)
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
