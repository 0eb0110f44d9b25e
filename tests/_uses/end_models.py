"""Which layer is the last, and which parts of a fused layer are matrices."""

import functools

import jax
import jax.numpy as jnp
from _uses.battery import A, T, small
from jax import lax

end = functools.partial(small, "end")
X, SEQ = A(4, 7), A(4, 9, 7)
relu, softmax = jax.nn.relu, jax.nn.softmax


@end(X, w="io 7 12", out="- 12 5", t="-", b="- 5")
def scaled_and_shifted_scores(p, x):
    return relu(x @ p["w"]) @ p["out"] * jnp.exp(p["t"]) + p["b"]


@end(X, w="io 7 12", proj="io 12 6", g="- 6")
def projector_with_a_norm(p, x):
    z = relu(x @ p["w"]) @ p["proj"]
    return (z - z.mean(0)) * lax.rsqrt(z.var(0) + 1e-5) * p["g"]


@end(X, w="io 7 12", a="- 12 5", b="- 12 3", c="- 12 2")
def several_heads(p, x):
    h = relu(x @ p["w"])
    return h @ p["a"], softmax(h @ p["b"]), (h @ p["c"]).mean()


@end(X, w="io 7 12", policy="io|-? 12 5", value="io 17 8", out="- 8 2")
def head_that_another_head_reads(p, x):
    h = relu(x @ p["w"])
    pi = softmax(h @ p["policy"])
    return pi, relu(jnp.concatenate([h, pi], -1) @ p["value"]) @ p["out"]


@end(X, w0="io 7 12", o0="- 12 5", w1="io 12 12", o1="- 12 5")
def supervised_at_each_depth(p, x):
    a = relu(x @ p["w0"])
    b = relu(a @ p["w1"])
    return a @ p["o0"], b @ p["o1"]


@end(X, w="io 7 12", mask="- 12 7")
def mask_of_the_input(p, x):
    return x * jax.nn.sigmoid(relu(x @ p["w"]) @ p["mask"])


@end(X, w="io 7 12", out="-? 12 5", a="io|-? 12 2", b="-? 2 5")
def adapted_head(p, x):
    h = relu(x @ p["w"])
    return h @ p["out"] + h @ p["a"] @ p["b"]


@end(X, w="io 7 12", out="-? 12 5", a="io|-? 12 2", b="-? 2 5")
def adapted_head_merged(p, x):
    return relu(x @ p["w"]) @ (p["out"] + p["a"] @ p["b"])


@end(X, a1="io 7 12", a2="io 12 7", b1="io 7 12", b2="-|io? 12 7")
def chain_of_flows(p, x):
    x = x * jnp.exp(jnp.tanh(relu(x @ p["a1"]) @ p["a2"]))
    return x * jnp.exp(jnp.tanh(relu(x @ p["b1"]) @ p["b2"]))


@end(SEQ, w="io 7 12", out="- 12 5", router="- 7 3", w2="bio|- 3 12 7")
def experts_beside_a_head(p, x):
    g, e = lax.top_k(x @ p["router"], 1)
    h = relu(x @ p["w"])
    y = jnp.einsum("bti,btio->bto", h, p["w2"][e[..., 0]]) * jax.nn.sigmoid(g)
    return h @ p["out"], y


@end(X, w="io 7 12", dist="io/2|-|-? 12 10")
def mean_and_spread(p, x):
    mean, spread = jnp.split(relu(x @ p["w"]) @ p["dist"], 2, -1)
    return mean, jax.nn.softplus(spread)


@end(A(2, 6, 6, 3), w="iiio 3 3 3 8", out="- 3 3 8 12")
def last_convolution(p, x):
    conv = lambda x, w: lax.conv_general_dilated(
        x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    y = conv(relu(conv(x, p["w"])), p["out"]).reshape(2, 6, 6, 2, 2, 3)
    return y.transpose(0, 1, 3, 2, 4, 5).reshape(2, 12, 12, 3)


@end(T(4, 9), emb="- 20 7", w="io 7 12", out="- 12 20")
def loss_by_gathered_columns(p, t):
    h = relu(p["emb"][t] @ p["w"])
    z = h @ p["out"]
    gold = jnp.take_along_axis(z, t[..., None], -1)[..., 0]
    return (jax.nn.logsumexp(z, -1) - gold).mean() + 1e-4 * (z**2).mean()


@end(T(4, 9), emb="- 20 7", w="io/2 7 24", out="- 12 20")
def half_gate_half_shift(p, t):
    h = p["emb"][t] @ p["w"]
    prev = jnp.pad(h, ((0, 0), (1, 0), (0, 0)))[:, :-1]
    return (h[..., :12] * jax.nn.sigmoid(prev[..., 12:])) @ p["out"]


@end(SEQ, w="io/3 7 36", o="io 12 7", out="- 7 5")
def fused_by_a_reshape_and_unstack(p, x):
    q, k, v = jnp.unstack((x @ p["w"]).reshape(4, 9, 3, 12), axis=2)
    return relu(x + softmax(q @ k.mT) @ v @ p["o"]) @ p["out"]


@end(SEQ, w="io/(12,6) 7 18", o="io 12 7", out="- 7 5")
def keys_that_are_values(p, x):
    h = x @ p["w"]
    v, k = h[..., :12], h[..., 12:]
    return relu(x + softmax(k @ k.mT) @ v @ p["o"]) @ p["out"]


@end(SEQ, w="io 7 12", out="- 12 5")
def halves_of_a_norm(p, x):
    h = (x @ p["w"]).reshape(4, 9, 2, 6)
    h = h - h.mean(-1, keepdims=True)
    return relu(h.reshape(4, 9, 12)) @ p["out"]


@end(SEQ, w="io|io/2? 7 12", out="- 12 5")
def rotary_by_two_halves_added(p, x):
    h = x @ p["w"]
    a, b = h[..., :6], h[..., 6:]
    t = jnp.arange(9.0)[:, None]
    up = jnp.concatenate([a, jnp.zeros_like(a)], -1) * jnp.cos(t)
    down = jnp.concatenate([jnp.zeros_like(b), b], -1) * jnp.sin(t)
    return relu(up + down) @ p["out"]
