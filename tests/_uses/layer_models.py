"""Kinds of layers in tiny models."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from _uses.battery import A, T, small
from jax import lax

layer = functools.partial(small, "layer")
KEY = jax.eval_shape(lambda: jax.random.key(0))
X, SEQ = A(4, 7), A(4, 9, 7)
relu, softmax = jax.nn.relu, jax.nn.softmax
ATT = {n: "io 7 12" for n in "qkv"}


def head(p, h):
    return relu(h) @ p["out"]


def heads(x, n=3):
    return x.reshape(*x.shape[:-1], n, -1)


def attend(q, k, v, bias=0):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) + bias
    y = jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)
    return y.reshape(*y.shape[:2], -1)


def unit(x):
    return x * lax.rsqrt((x * x).sum(-1, keepdims=True) + 1e-6)


# Attention.


@layer(SEQ, **ATT, o="io 12 8", out="- 8 5")
def attention_with_slopes(p, x):
    q, k, v = (heads(x @ p[n]) for n in "qkv")
    far = jnp.abs(jnp.arange(9)[:, None] - jnp.arange(9))
    bias = -far * 2.0 ** -jnp.arange(1, 4)[:, None, None]
    return head(p, attend(q, k, v, bias) @ p["o"])


@layer(SEQ, **ATT, bias="- 3 17", o="io 12 8", out="- 8 5")
def attention_with_relative_biases(p, x):
    q, k, v = (heads(x @ p[n]) for n in "qkv")
    i = np.arange(9)
    bias = p["bias"][:, i[:, None] - i + 8]
    return head(p, attend(q, k, v, bias) @ p["o"])


@layer(SEQ, **ATT, bias="- 3 9 9", o="io 12 8", out="- 8 5")
def attention_with_a_full_bias(p, x):
    q, k, v = (heads(x @ p[n]) for n in "qkv")
    return head(p, attend(q, k, v, p["bias"]) @ p["o"])


@layer(SEQ, **ATT, g="- 3 4", o="io 12 8", out="- 8 5")
def attention_with_normed_queries(p, x):
    q, k, v = (heads(x @ p[n]) for n in "qkv")
    return head(p, attend(unit(q) * p["g"], unit(k) * p["g"], v) @ p["o"])


@layer(SEQ, A(4, 6, 8), q="io 7 12", k="io 8 12", v="io 8 12", o="io 12 7", out="- 7 5")
def cross_attention(p, x, y):
    q, k, v = heads(x @ p["q"]), heads(y @ p["k"]), heads(y @ p["v"])
    return head(p, x + attend(q, k, v) @ p["o"])


@layer(SEQ, q="ioo 7 6 4", k="ioo 7 2 4", v="ioo 7 2 4", o="iio 6 4 8", out="- 8 5")
def grouped_queries(p, x):
    q, k, v = (jnp.einsum("btd,dhk->bthk", x, p[n]) for n in "qkv")
    k, v = (jnp.repeat(y, 3, 2) for y in (k, v))
    y = attend(q, k, v).reshape(4, 9, 6, 4)
    return head(p, jnp.einsum("bthk,hko->bto", y, p["o"]))


@layer(
    SEQ, q="iooo 7 2 3 4", k="ioo 7 2 4", v="ioo 7 2 4", o="iiio 2 3 4 8", out="- 8 5"
)
def grouped_queries_in_five_axes(p, x):
    q = jnp.einsum("btd,dghk->btghk", x, p["q"])
    k, v = (jnp.einsum("btd,dgk->btgk", x, p[n]) for n in "kv")
    s = softmax(jnp.einsum("bqghk,bsgk->bghqs", q, k))
    y = jnp.einsum("bghqs,bsgk->bqghk", s, v)
    return head(p, jnp.einsum("btghk,ghko->bto", y, p["o"]))


@layer(
    *(SEQ,),
    **{n: "oio|bio 3 7 4" for n in "qkv"},
    **{"o": "iio|bio 3 4 8", "out": "- 8 5"},
)
def heads_before_inputs(p, x):
    q, k, v = (jnp.einsum("btd,hdk->bthk", x, p[n]) for n in "qkv")
    y = attend(q, k, v).reshape(4, 9, 3, 4)
    return head(p, jnp.einsum("bthk,hko->bto", y, p["o"]))


@layer(SEQ, **ATT, out="- 12 5")
def linear_attention(p, x):
    q, k, v = (heads(x @ p[n]) for n in "qkv")
    q, k = jax.nn.elu(q) + 1, jax.nn.elu(k) + 1
    s = jnp.einsum("bthk,bthv->bhkv", k, v)
    y = jnp.einsum("bthk,bhkv->bthv", q, s)
    return head(p, y.reshape(4, 9, 12))


@layer(SEQ, **ATT, out="- 12 5")
def random_features_of_attention(p, x):
    q, k, v = (heads(x @ p[n]) for n in "qkv")
    r = np.random.default_rng(0).standard_normal((4, 6)).astype("f")
    q, k = jnp.exp(q @ r), jnp.exp(k @ r)
    y = jnp.einsum("bthm,bhmv->bthv", q, jnp.einsum("bthm,bthv->bhmv", k, v))
    return head(p, y.reshape(4, 9, 12))


@layer(SEQ, **ATT, out="- 12 5")
def attention_to_the_best_keys(p, x):
    q, k, v = (x @ p[n] for n in "qkv")
    s = q @ k.mT
    least = lax.top_k(s, 3)[0][..., -1:]
    return head(p, softmax(jnp.where(s >= least, s, -jnp.inf)) @ v)


@layer(SEQ, **ATT, out="- 12 5")
def hard_attention(p, x):
    q, k, v = (x @ p[n] for n in "qkv")
    i = jnp.argmax(q @ k.mT, -1)
    return head(p, jnp.take_along_axis(v, i[..., None], 1))


@layer(SEQ, q="io 7 12", k="io 7 12", v="-? 12", out="- 7 5")
def additive_attention(p, x):
    s = jnp.tanh((x @ p["q"])[:, :, None] + (x @ p["k"])[:, None]) @ p["v"]
    return head(p, softmax(s) @ x)


@layer(
    SEQ, mk="-? 6 4", mv="-? 6 12", q="io 7 4", k="io 7 4", v="io 7 12", out="- 12 5"
)
def memory_beside_the_keys(p, x):
    more = lambda m, y: jnp.concatenate([jnp.broadcast_to(m, (4, *m.shape)), y], 1)
    k, v = more(p["mk"], x @ p["k"]), more(p["mv"], x @ p["v"])
    return head(p, softmax(x @ p["q"] @ k.mT) @ v)


@layer(
    SEQ, reg="- 3 7", pos="- 20 7", q="io 7 12", k="io 7 12", v="io 7 12", out="- 12 5"
)
def registers_and_positions(p, x):
    x = x + p["pos"][:9]
    x = jnp.concatenate([jnp.broadcast_to(p["reg"], (4, 3, 7)), x], 1)
    q, k, v = (heads(x @ p[n]) for n in "qkv")
    return head(p, attend(q, k, v)[:, 3:])


@layer(A(4, 3, 6, 7), row="- 3 7", col="- 6 7", w="io 7 12", out="- 12 5")
def positions_of_two_axes(p, x):
    x = x + p["row"][:, None] + p["col"]
    return head(p, x @ p["w"])


@layer(SEQ, ind="-? 3 8", wq="io? 8 12", k="io 7 12", v="io 7 12", out="- 12 5")
def inducing_points(p, x):
    q = jnp.broadcast_to(p["ind"], (4, 3, 8)) @ p["wq"]
    return head(p, softmax(q @ (x @ p["k"]).mT) @ (x @ p["v"]))


@layer(SEQ, e="io|-? 9 3", f="io|-? 9 3", **ATT, out="- 12 5")
def keys_of_low_rank_in_time(p, x):
    q, k, v = (x @ p[n] for n in "qkv")
    k, v = jnp.einsum("btd,tr->brd", k, p["e"]), jnp.einsum("btd,tr->brd", v, p["f"])
    return head(p, softmax(q @ k.mT) @ v)


@layer(SEQ, alpha="-|io|oi? 9 9", v="io 7 12", out="- 12 5")
def learned_attention_without_data(p, x):
    return head(p, softmax(p["alpha"]) @ (x @ p["v"]))


@layer(SEQ, **ATT, talk="io 3 3", out="- 12 5")
def talking_heads(p, x):
    q, k, v = (heads(x @ p[n]) for n in "qkv")
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k)
    s = jnp.einsum("bhqk,hg->bgqk", s, p["talk"])
    y = jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)
    return head(p, y.reshape(4, 9, 12))


@layer(SEQ, gate="io 7 12", **ATT, out="- 12 5")
def gated_attention(p, x):
    q, k, v = (heads(x @ p[n]) for n in "qkv")
    return head(p, attend(q, k, v) * jax.nn.sigmoid(x @ p["gate"]))


@layer(SEQ, wqk="io 7 6", s="- 2 6", v="io 7 12", out="- 12 5")
def shared_queries_and_keys(p, x):
    z = x @ p["wqk"]
    q, k = z * p["s"][0], z * p["s"][1]
    return head(p, relu(q @ k.mT) ** 2 @ (x @ p["v"]))


@layer(SEQ, qkv="io/3 7 36", out="- 12 5")
def fused_in_flash_chunks(p, x):
    q, k, v = jnp.split(x @ p["qkv"], 3, -1)
    k, v = (jnp.moveaxis(y.reshape(4, 3, 3, 12), 1, 0) for y in (k, v))

    def step(c, kv):
        m, l, o = c
        s = q @ kv[0].mT
        new = jnp.maximum(m, s.max(-1))
        e, a = jnp.exp(s - new[..., None]), jnp.exp(m - new)
        return (new, l * a + e.sum(-1), o * a[..., None] + e @ kv[1]), None

    start = (jnp.full((4, 9), -1e9), jnp.zeros((4, 9)), jnp.zeros((4, 9, 12)))
    _, l, o = lax.scan(step, start, (k, v))[0]
    return head(p, o / l[..., None])


# Experts and routers.


@layer(
    X,
    gate="-|io? 7 3",
    a="bio|oio? 3 7 2",
    b="bio|iio? 3 2 12",
    w="io 7 12",
    out="- 12 5",
)
def mixture_of_lora(p, x):
    g = softmax(x @ p["gate"])
    d = jnp.einsum("bi,eir,ero,be->bo", x, p["a"], p["b"], g)
    return head(p, x @ p["w"] + d)


@layer(X, T(4), a="bio 3 7 2", b="bio 3 2 12", w="io 7 12", out="- 12 5")
def adapters_of_tenants(p, x, i):
    y = jnp.einsum("bi,bir->br", x, p["a"][i])
    return head(p, x @ p["w"] + jnp.einsum("br,bro->bo", y, p["b"][i]))


@layer(X, router="- 7 3", w1="bio 3 7 12", w2="bio 3 12 8", out="- 8 5")
def experts_with_capacity(p, x):
    pr = softmax(x @ p["router"])
    e = jnp.argmax(pr, -1)
    hot = jax.nn.one_hot(e, 3)
    place = (jnp.cumsum(hot, 0) - 1) * hot
    disp = hot[..., None] * jax.nn.one_hot(place.sum(-1).astype(int), 2)[:, None]
    z = jnp.einsum("bec,bd->ecd", disp, x)
    z = jnp.einsum(
        "ecf,efd->ecd", relu(jnp.einsum("ecd,edf->ecf", z, p["w1"])), p["w2"]
    )
    comb = disp * pr[..., None]
    return head(p, jnp.einsum("bec,ecd->bd", comb, z))


@layer(X, router="- 7 3", w1="bio 3 7 12", w2="bio 3 12 8", out="- 8 5")
def experts_sorted_and_padded(p, x):
    g, e = lax.top_k(softmax(x @ p["router"]), 1)
    order = jnp.argsort(e[:, 0])
    y = lax.ragged_dot(x[order], p["w1"], jnp.bincount(e[:, 0], length=3))
    y = lax.ragged_dot(relu(y), p["w2"], jnp.bincount(e[:, 0], length=3))
    return head(p, y[jnp.argsort(order)] * g)


@layer(X, router="- 7 3", w="bio 3 7 12", out="- 12 5")
def experts_by_gathered_weights(p, x):
    g, e = lax.top_k(x @ p["router"], 2)
    y = jnp.einsum("bd,bkdf->bkf", x, p["w"][e])
    return head(p, (y * softmax(g)[..., None]).sum(1))


@layer(X, KEY, router="- 7 3", noise="-? 7 3", w="bio 3 7 12", out="- 12 5")
def noisy_router(p, x, key):
    z = jax.random.normal(key, (4, 3)) * jax.nn.softplus(x @ p["noise"])
    g, e = lax.top_k(x @ p["router"] + z, 2)
    y = jnp.einsum("bd,bkdf->bkf", x, p["w"][e])
    return head(p, (y * softmax(g)[..., None]).sum(1))


@layer(X, keys="-? 3 7", w="bio 3 7 12", out="- 12 5")
def routed_to_the_nearest_key(p, x):
    e = jnp.argmin(((x[:, None] - p["keys"]) ** 2).sum(-1), -1)
    return head(p, jnp.einsum("bd,bdf->bf", x, p["w"][e]))


@layer(X, router="- 7 3", w="bio 3 7 12", out="- 12 5")
def routed_by_cosine(p, x):
    c = p["router"] / jnp.linalg.norm(p["router"], axis=0)
    g, e = lax.top_k(unit(x) @ c, 2)
    y = jnp.einsum("bd,bkdf->bkf", x, p["w"][e])
    return head(p, (y * softmax(g)[..., None]).sum(1))


@layer(X, router="-? 7 3", w="bio? 3 7 12", out="- 12 5")
def experts_one_after_the_other(p, x):
    e = jnp.argmax(x @ p["router"], -1)

    def step(y, i_w):
        i, w = i_w
        return y + jnp.where((e == i)[:, None], x @ w, 0), None

    y, _ = lax.scan(step, jnp.zeros((4, 12)), (jnp.arange(3), p["w"]))
    return head(p, y)


@layer(X, router="-? 7 2", a="io 7 12", b="io 7 12", out="- 12 5")
def branch_chosen_by_a_router(p, x):
    e = jnp.argmax((x @ p["router"]).mean(0))
    branches = [lambda x: x @ p["a"], lambda x: jnp.tanh(x @ p["b"])]
    return head(p, lax.switch(e, branches, x))


@layer(X, router="-|io? 7 3", w="bio? 3 7 12", out="- 12 5")
def sigmoid_gates_of_all_experts(p, x):
    g = jax.nn.sigmoid(x @ p["router"])
    return head(p, jnp.einsum("be,beo->bo", g, jnp.einsum("bi,eio->beo", x, p["w"])))


@layer(X, q="io|-? 7 12", keys="-? 2 5 6", values="- 25 8", w="io 8 9", out="- 9 4")
def product_keys(p, x):
    q = (x @ p["q"]).reshape(4, 2, 6)
    s, i = lax.top_k(jnp.einsum("bhd,hkd->bhk", q, p["keys"]), 2)
    pair = (s[:, 0, :, None] + s[:, 1, None]).reshape(4, 4)
    at = (i[:, 0, :, None] * 5 + i[:, 1, None]).reshape(4, 4)
    y = (softmax(pair)[..., None] * p["values"][at]).sum(1)
    return head(p, y @ p["w"])


# Discrete codes.


@layer(X, enc="io 7 6", book="- 9 6", dec="io 6 12", out="- 12 7")
def quantized_vectors(p, x):
    z = x @ p["enc"]
    i = jnp.argmin(((z[:, None] - p["book"]) ** 2).sum(-1), -1)
    q = p["book"][i]
    pen = ((lax.stop_gradient(z) - q) ** 2).mean()
    q = z + lax.stop_gradient(q - z)
    return head(p, q @ p["dec"]), pen


@layer(X, enc="io 7 6", book="- 9 6", dec="io 6 12", out="- 12 7")
def quantized_by_a_product(p, x):
    z = x @ p["enc"]
    d = (p["book"] ** 2).sum(-1) - 2 * z @ p["book"].T
    q = p["book"][jnp.argmin(d, -1)]
    q = z + lax.stop_gradient(q - z)
    return head(p, q @ p["dec"])


@layer(X, enc="io 7 6", books="- 4 9 6", dec="io 6 12", out="- 12 7")
def residual_quantizers(p, x):
    def step(r, book):
        q = book[jnp.argmin(((r[:, None] - book) ** 2).sum(-1), -1)]
        return r - q, q

    z = x @ p["enc"]
    q = lax.scan(step, z, p["books"])[1].sum(0)
    return head(p, (z + lax.stop_gradient(q - z)) @ p["dec"])


@layer(X, KEY, enc="io|-? 7 9", book="-|io? 9 6", dec="io 6 12", out="- 12 7")
def codes_by_gumbel(p, x, key):
    z = x @ p["enc"] + jax.random.gumbel(key, (4, 9))
    return head(p, softmax(z / 0.5) @ p["book"] @ p["dec"])


@layer(X, KEY, enc="io 7 10", lat="io|-? 10 12", dec="io 12 8", out="- 8 7")
def categorical_latents(p, x, key):
    z = (relu(x @ p["enc"]) @ p["lat"]).reshape(4, 3, 4)
    hot = jax.nn.one_hot(jax.random.categorical(key, z), 4)
    hot = hot + softmax(z) - lax.stop_gradient(softmax(z))
    return head(p, hot.reshape(4, 12) @ p["dec"])


@layer(X, enc="io? 7 20", mid="io? 20 9", out="- 9 7")
def sparse_autoencoder(p, x):
    h = relu(x @ p["enc"])
    least = lax.top_k(h, 4)[0][:, -1:]
    return head(p, jnp.where(h >= least, h, 0) @ p["mid"])


@layer(X, w="io 7 12", mid="io|-? 12 9", out="- 9 5")
def units_of_largest_magnitude(p, x):
    h = x @ p["w"]
    i = lax.top_k(jnp.abs(h), 4)[1]
    return head(p, (h * jax.nn.one_hot(i, 12).sum(-2)) @ p["mid"])


@layer(X, enc="io|-? 7 20", mid="-|io? 20 9", out="- 9 7")
def sparse_autoencoder_by_gather(p, x):
    v, i = lax.top_k(x @ p["enc"], 4)
    return head(p, jnp.einsum("bk,bkd->bd", relu(v), p["mid"][i]))


# Activations that look at several outputs.


@layer(X, w="io? 7 12", mid="io 12 8", out="- 8 5")
def sorted_in_groups(p, x):
    h = jnp.sort((x @ p["w"]).reshape(4, 6, 2), -1).reshape(4, 12)
    return head(p, h @ p["mid"])


@layer(X, w="io? 7 12", mid="io 12 8", out="- 8 5")
def sorted_outputs(p, x):
    return head(p, jnp.sort(x @ p["w"], -1) @ p["mid"])


@layer(X, w="io 7 12", mid="io 6 8", out="- 8 5")
def maxout(p, x):
    h = (x @ p["w"]).reshape(4, 6, 2).max(-1)
    return head(p, h @ p["mid"])


@layer(SEQ, w="io 7 12", mid="io 12 8", out="- 8 5")
def maximum_over_time(p, x):
    return head(p, (x @ p["w"]).max(1) @ p["mid"])


@layer(SEQ, w="io? 7 12", mid="io 36 8", out="- 8 5")
def best_times_of_each_channel(p, x):
    h = lax.top_k(jnp.moveaxis(x @ p["w"], 1, 2), 3)[0]
    return head(p, h.reshape(4, 36) @ p["mid"])


@layer(SEQ, w="io? 7 12", mid="io 36 8", out="- 8 5")
def sort_pooling(p, x):
    h = x @ p["w"]
    order = jnp.argsort(-h[..., -1], 1)[:, :3]
    h = jnp.take_along_axis(h, order[..., None], 1)
    return head(p, h.reshape(4, 36) @ p["mid"])


@layer(X, w="io? 7 12", mid="io 12 8", out="- 8 5")
def softmax_as_an_activation(p, x):
    h = x @ p["w"]
    return head(p, (h * softmax(h)) @ p["mid"])


@layer(X, w="io? 7 12", mid="io 12 8", out="- 8 5")
def scaled_by_the_maximum(p, x):
    h = jnp.exp(x @ p["w"])
    return head(p, (h / h.max(-1, keepdims=True)) @ p["mid"])


@layer(X, w="io? 7 12", mid="io 12 8", out="- 8 5")
def quantiles_of_the_outputs(p, x):
    h = x @ p["w"]
    return head(p, (h - jnp.median(h, -1, keepdims=True)) @ p["mid"])


@layer(X, w="io 7 12", mid="io 12 8", out="- 8 5")
def quantized_activations(p, x):
    h = x @ p["w"]
    s = jnp.abs(h).max(-1, keepdims=True) / 127
    h = h + lax.stop_gradient(jnp.round(h / s) * s - h)
    return head(p, h @ p["mid"])


@layer(X, w="io? 7 12", mid="io 12 8", out="- 8 5")
def quantized_between_extremes(p, x):
    h = x @ p["w"]
    low, high = h.min(-1, keepdims=True), h.max(-1, keepdims=True)
    q = jnp.round((h - low) / (high - low) * 15) / 15 * (high - low) + low
    return head(p, (h + lax.stop_gradient(q - h)) @ p["mid"])


# Images and fields.


@layer(A(2, 6, 6, 8), a="io 8 2", b="io 2 8", out="- 8 5")
def squeeze_and_excite(p, x):
    s = jax.nn.sigmoid(relu(x.mean((1, 2)) @ p["a"]) @ p["b"])
    return head(p, (x * s[:, None, None]).mean((1, 2)))


@layer(A(2, 9, 8), k="io? 8 6", out="- 8 5")
def dynamic_convolution(p, x):
    k = softmax((x @ p["k"]).reshape(2, 9, 2, 3))
    pad = jnp.pad(x, ((0, 0), (1, 1), (0, 0)))
    w = jnp.stack([pad[:, i : i + 9] for i in range(3)], -1).reshape(2, 9, 2, 4, 3)
    return head(p, jnp.einsum("btgck,btgk->btgc", w, k).reshape(2, 9, 8))


@layer(A(2, 9, 8), off="io 8 3", w="iio 3 8 12", out="- 12 5")
def deformable_convolution(p, x):
    at = jnp.arange(9)[:, None] + jnp.arange(-1, 2) + x @ p["off"]
    low = jnp.clip(jnp.floor(at), 0, 7).astype(int)
    f = (at - low)[..., None]
    take = jax.vmap(lambda x, i: x[i])
    y = take(x, low) * (1 - f) + take(x, low + 1) * f
    return head(p, jnp.einsum("btkc,kco->bto", y, p["w"]))


@layer(A(5, 3), planes="- 3 8 8 6", w="io 6 12", out="- 12 4")
def planes_of_features(p, x):
    at = (x + 1) * 3.5
    low = jnp.clip(jnp.floor(at), 0, 6).astype(int)
    f = at - low
    total = 0
    for n, (i, j) in enumerate(((0, 1), (0, 2), (1, 2))):
        for a in (0, 1):
            for b in (0, 1):
                c = (f[:, i] if a else 1 - f[:, i]) * (f[:, j] if b else 1 - f[:, j])
                total += c[:, None] * p["planes"][n, low[:, i] + a, low[:, j] + b]
    return head(p, total @ p["w"])


@layer(A(5, 2), image="- 8 9")
def learned_image(p, x):
    return jax.scipy.ndimage.map_coordinates(p["image"], list((x * 4).T), 1)


@layer(A(2, 6, 5), A(8, 3), b1="io 30 9", b2="io|-? 9 6", t1="io 3 11", t2="io|-? 11 6")
def deep_operator_network(p, u, y):
    b = jnp.tanh(u.reshape(2, 30) @ p["b1"]) @ p["b2"]
    return b @ (jnp.tanh(y @ p["t1"]) @ p["t2"]).T


# Graphs and sets.


@layer(A(9, 7), T(20), T(20), w="io 7 12", out="- 12 5")
def graph_convolution(p, x, s, r):
    n = jnp.maximum(jax.ops.segment_sum(jnp.ones(20), r, 9), 1)
    h = jax.ops.segment_sum((x @ p["w"])[s], r, 9) / n[:, None]
    return head(p, h)


@layer(A(9, 7), T(20), T(20), w="io 14 12", out="- 12 5")
def sampled_neighbours(p, x, s, r):
    h = jax.ops.segment_max(x[s], r, 9)
    return head(p, jnp.concatenate([x, h], -1) @ p["w"])


@layer(A(9, 7), T(20), T(20), A(20, 4), e="io|ioo? 4 84", out="- 12 5")
def matrices_of_edges(p, x, s, r, e):
    w = (e @ p["e"]).reshape(20, 7, 12)
    return head(p, jax.ops.segment_sum(jnp.einsum("ei,eio->eo", x[s], w), r, 9))


@layer(A(9, 7), T(20), T(20), T(20), w="bio 3 7 12", out="- 12 5")
def matrices_of_relations(p, x, s, r, kind):
    y = jnp.einsum("ni,kio->nko", x, p["w"])[s, kind]
    return head(p, jax.ops.segment_sum(y, r, 9))


@layer(A(9, 7), T(20), T(20), w="io 7 12", a="- 3 4", out="- 12 5")
def graph_attention(p, x, s, r):
    h = heads(x @ p["w"])
    z = (jax.nn.leaky_relu(h[s] + h[r]) * p["a"]).sum(-1)
    z = jnp.exp(z - jax.ops.segment_max(z, r, 9)[r])
    z = z / jax.ops.segment_sum(z, r, 9)[r]
    h = jax.ops.segment_sum(h[s] * z[..., None], r, 9)
    return head(p, h.reshape(9, 12))


@layer(A(9, 7), A(9, 9), w="io 7 12", out="- 12 5")
def adjacency_as_an_input(p, x, adjacency):
    return head(p, adjacency @ x @ p["w"])


@layer(A(9, 7), adj="-|io|oi? 9 9", w="io 7 12", out="- 12 5")
def learned_adjacency(p, x):
    return head(p, softmax(relu(p["adj"])) @ (x @ p["w"]))


@layer(A(9, 7), e1="-|io? 9 3", e2="-|io|oi? 9 3", w="io 7 12", out="- 12 5")
def adjacency_of_two_tables(p, x):
    return head(p, softmax(relu(p["e1"] @ p["e2"].T)) @ (x @ p["w"]))


@layer(A(4, 9, 3), t1="io 3 11", t2="io 11 9", w="io 3 12", out="- 12 5")
def learned_rotation_of_points(p, x):
    r = (relu(x @ p["t1"]).max(1) @ p["t2"]).reshape(4, 3, 3) + jnp.eye(3)
    return head(p, (jnp.einsum("bni,bij->bnj", x, r) @ p["w"]).max(1))


# Recommendation and relations.


@layer(T(4, 3), A(4, 7), emb="- 3 20 6", bot="io 7 6", w="io 12 9", out="- 9 2")
def interactions_of_features(p, t, x):
    e = p["emb"][jnp.arange(3), t]
    z = jnp.concatenate([(x @ p["bot"])[:, None], e], 1)
    s = jnp.einsum("bid,bjd->bij", z, z)
    i, j = np.triu_indices(4, 1)
    return head(p, jnp.concatenate([s[:, i, j], z[:, 0]], -1) @ p["w"])


@layer(T(12), T(12), emb="- 20 7", w="io 7 12", out="- 12 5")
def bags_of_embeddings(p, t, segment):
    bag = jax.ops.segment_sum(p["emb"][t], segment, 4)
    return head(p, bag @ p["w"])


@layer(T(4), T(4), users="- 20 6", items="- 30 6")
def factors_of_users_and_items(p, u, i):
    return (p["users"][u] * p["items"][i]).sum(-1)


@layer(A(4, 15), v="io|-? 15 6", w="- 15 2")
def factorization_machine(p, x):
    pair = ((x @ p["v"]) ** 2 - x**2 @ p["v"] ** 2).sum(-1)
    return x @ p["w"] + pair[:, None]


@layer(X, w0="io 7 7", w1="io 7 7", out="- 7 5")
def cross_network(p, x):
    y = x
    for n in ("w0", "w1"):
        y = x * (y @ p[n]) + y
    return head(p, y)


@layer(T(4), T(4), T(4), ent="- 20 6", rel="- 9 6")
def complex_of_three_rows(p, s, r, o):
    return (p["ent"][s] * p["rel"][r] * p["ent"][o]).sum(-1)


@layer(T(4), T(4), T(4), ent="- 20 6", rel="bio|boi? 9 6 6")
def matrices_between_rows(p, s, r, o):
    y = jnp.einsum("bi,bij->bj", p["ent"][s], p["rel"][r])
    return (y * p["ent"][o]).sum(-1)


@layer(X, A(4, 6), t="iio|oii|ioo? 5 7 6", v="io 13 5", out="- 5 3")
def neural_tensor(p, x, y):
    z = jnp.einsum("bi,kij,bj->bk", x, p["t"], y)
    return head(p, jnp.tanh(z + jnp.concatenate([x, y], -1) @ p["v"]))


@layer(SEQ, x="io 7 6", y="io 7 8", u="iio|ioo|ioi? 6 5 8")
def biaffine_parser(p, s):
    return jnp.einsum("bxi,ioj,byj->bxyo", s @ p["x"], p["u"], s @ p["y"])


@layer(X, A(4, 6), a="io 7 12", b="io 6 12", pa="-|io 12 8", pb="-|io 12 8")
def two_towers(p, x, y):
    u, v = unit(relu(x @ p["a"]) @ p["pa"]), unit(relu(y @ p["b"]) @ p["pb"])
    return jax.nn.log_softmax(u @ v.T)


# Tables and series.


@layer(X, w="- 7 6", b="- 7 6", q="io 6 12", k="io 6 12", v="io 6 12", out="- 12 5")
def tokens_of_numbers(p, x):
    t = x[..., None] * p["w"] + p["b"]
    q, k, v = (t @ p[n] for n in "qkv")
    return head(p, softmax(q @ k.mT) @ v)


@layer(A(4, 7, 3), w="bio 7 3 6", mid="io 42 12", out="- 12 5")
def layer_of_each_feature(p, x):
    h = relu(jnp.einsum("bfk,fkd->bfd", x, p["w"]))
    return head(p, h.reshape(4, 42) @ p["mid"])


@layer(A(4, 9, 7), w="io 9 6", out="- 6 5")
def product_along_time(p, x):
    return head(p, jnp.einsum("btc,th->bch", x, p["w"]))


@layer(A(4, 9, 7), w="ibo|bio? 9 7 6", out="- 6 5")
def product_along_time_of_each_channel(p, x):
    return head(p, jnp.einsum("btc,tch->bch", x, p["w"]))


@layer(X, sel="io? 7 6", w="- 6 4", mid="io 6 9", out="- 9 5")
def oblivious_trees(p, x):
    f = x @ softmax(p["sel"], 0)
    c = jax.nn.sigmoid(f[..., None] - p["w"]).prod(-1)
    return head(p, c @ p["mid"])


@layer(A(4, 3, 8), w="boio|bbio? 3 5 8 6", mid="io 30 9", out="- 9 4")
def capsules(p, x):
    u = jnp.einsum("bid,ijdo->bijo", x, p["w"])
    b = jnp.zeros((4, 3, 5))
    for _ in range(2):
        s = (softmax(b)[..., None] * u).sum(1)
        v = s / (1 + (s**2).sum(-1, keepdims=True))
        b = b + (u * v[:, None]).sum(-1)
    return head(p, v.reshape(4, 30) @ p["mid"])


@layer(
    *(SEQ, A(4, 3, 6)),
    **{"q": "io 6 6", "k": "io 7 6", "v": "io 7 6", "wx": "io 6 6", "wh": "io 6 6"},
    **{"out": "- 6 5"},
)
def slots(p, x, noise):
    k, v = x @ p["k"], x @ p["v"]

    def step(_, s):
        a = softmax(jnp.einsum("btd,bsd->bts", k, unit(s) @ p["q"]))
        u = jnp.einsum("bts,btd->bsd", a / a.sum(1, keepdims=True), v)
        z = jax.nn.sigmoid(u @ p["wx"] + s @ p["wh"])
        return (1 - z) * s + z * jnp.tanh(u)

    return head(p, lax.fori_loop(0, 3, step, noise))


@layer(SEQ, mem="-|io|oi? 8 7", w="io 7 12", out="- 12 5")
def patterns_of_hopfield(p, x):
    y = softmax(x @ p["mem"].T) @ p["mem"]
    return head(p, y @ p["w"])


@layer(X, A(4, 5), h1="io 5 9", h2="io? 9 84", out="- 12 4")
def hypernetwork(p, x, c):
    w = (relu(c @ p["h1"]) @ p["h2"]).reshape(4, 7, 12)
    return head(p, jnp.einsum("bi,bio->bo", x, w))


@layer(X, z="-? 3 4", h="io? 4 28", out="- 12 5")
def hypernetwork_of_chunks(p, x):
    w = (p["z"] @ p["h"]).reshape(3, 7, 4)
    w = jnp.moveaxis(w, 0, 1).reshape(7, 12)
    return head(p, x @ w)


@layer(X, A(4, 5), film="io/2 5 24", w="io 7 12", mid="io 12 9", out="- 9 4")
def shift_and_scale(p, x, c):
    s, t = jnp.split(c @ p["film"], 2, -1)
    return head(p, relu((x @ p["w"]) * s + t) @ p["mid"])


@layer(X, w="io 7 7", out="- 7 5")
def invertible_mixing(p, x):
    z = x @ p["w"]
    return head(p, z), jnp.linalg.slogdet(p["w"])[1]


@layer(X, l="io? 7 7", u="io? 7 7", out="- 7 5")
def invertible_mixing_by_triangles(p, x):
    w = (jnp.tril(p["l"], -1) + jnp.eye(7)) @ jnp.triu(p["u"])
    return head(p, x @ w)


@layer(
    SEQ,
    nu="-? 12",
    bre="io 7 12",
    bim="io 7 12",
    cre="io 12 8",
    cim="io 12 8",
    out="- 8 5",
)
def linear_recurrence(p, x):
    u = x.astype(jnp.complex64) @ (p["bre"] + 1j * p["bim"])
    a = jnp.broadcast_to(jnp.exp(-jnp.exp(p["nu"])) + 0j, u.shape)
    f = lambda x, y: (x[0] * y[0], y[0] * x[1] + y[1])
    h = lax.associative_scan(f, (a, u), axis=1)[1]
    return head(p, (h @ (p["cre"] + 1j * p["cim"])).real)


@layer(SEQ, w="io/2 7 24", out="- 12 5")
def minimal_gated_recurrence(p, x):
    z, h = jnp.split(x @ p["w"], 2, -1)
    z = jax.nn.sigmoid(z)
    f = lambda x, y: (x[0] * y[0], y[0] * x[1] + y[1])
    return head(p, lax.associative_scan(f, (1 - z, z * h), axis=1)[1])


@layer(
    A(4, 7),
    are="-? 7 5",
    aim="-? 7 5",
    bre="-? 7 5",
    cre="-? 7 5",
    w="io 7 12",
    out="- 12 4",
)
def diagonal_state_space(p, x):
    a = -jnp.exp(p["are"]) + 1j * p["aim"]
    t = jnp.exp(a[..., None] * jnp.arange(9.0))
    k = jnp.einsum("cn,cnt->ct", p["bre"] * p["cre"], t).real
    return head(p, (x[:, :, None] * k).sum(-1) @ p["w"])
