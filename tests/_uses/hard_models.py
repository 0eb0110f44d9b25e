"""Tiny models that were read wrongly in silence, or crashed; answers came first."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from _uses.battery import A, T, small
from jax import lax
from jax.sharding import PartitionSpec as P

hard = functools.partial(small, "hard")
KEY = jax.eval_shape(lambda: jax.random.key(0))
X = A(4, 7)
relu = jax.nn.relu
WX = {"w": "io 7 12", "out": "- 12 5"}


def head(p, h):
    return relu(h) @ p["out"]


# A matrix that meets data entry by entry before its product.


@hard(X, KEY, **WX)
def drop_connect(p, x, key):
    return head(p, x @ (p["w"] * jax.random.bernoulli(key, 0.5, (7, 12)) * 2))


@hard(X, A(2), **WX)
def drop_connect_where(p, x, seed):
    keep = jnp.sin(seed[0] * jnp.arange(84.0)).reshape(7, 12) > 0
    return head(p, x @ jnp.where(keep, p["w"], 0))


@hard(X, KEY, w="io 7 12", rho="-? 7 12", out="- 12 5")
def bayes_by_noise(p, x, key):
    noise = jax.random.normal(key, (7, 12))
    return head(p, x @ (p["w"] + jax.nn.softplus(p["rho"]) * noise))


@hard(X, A(7), A(12), w="io 7 12", sigma="-? 7 12", out="- 12 5")
def noisy_net(p, x, a, b):
    return head(p, x @ (p["w"] + p["sigma"] * jnp.outer(a, b)))


@hard(X, A(7, 12), **WX)
def mask_as_input(p, x, mask):
    return head(p, x @ (p["w"] * mask))


@hard(X, A(7, 12), **WX)
def frozen_base_and_delta(p, x, base):
    return head(p, x @ (base + p["w"]))


@hard(X, A(7, 12), a="io 7 3", b="io 3 12", out="- 12 5")
def lora_on_a_frozen_base_merged(p, x, base):
    return head(p, x @ (base + 0.5 * p["a"] @ p["b"]))


@hard(X, A(7, 12), a="io 7 3", b="io 3 12", out="- 12 5")
def lora_on_a_frozen_base_apart(p, x, base):
    return head(p, x @ base + (x @ p["a"]) @ p["b"])


@hard(X, A(7, 12), m="-? 12", w="io 7 12", out="- 12 5")
def dora_on_a_frozen_base(p, x, base):
    w = base + p["w"]
    return head(p, x @ (w * (p["m"] / jnp.linalg.norm(w, axis=0))))


@hard(X, A(), **WX)
def scaled_by_time(p, x, t):
    return head(p, x @ (p["w"] * t))


@hard(X, A(), a="io 7 12", b="io 7 12", out="- 12 5")
def between_two(p, x, t):
    return head(p, x @ (t * p["a"] + (1 - t) * p["b"]))


@hard(X, T(), a="io 7 12", b="io 7 12", out="- 12 5")
def where_of_two(p, x, i):
    return head(p, x @ jnp.where(i > 0, p["a"], p["b"]))


@hard(X, T(), a="io 7 12", b="io 7 12", out="- 12 5")
def branch_of_weights(p, x, i):
    w = lax.cond(i > 0, lambda: p["a"], lambda: p["b"])
    return head(p, x @ w)


@hard(X, T(), a="io 7 12", b="io 7 12", c="io 7 12", out="- 12 5")
def switch_of_weights(p, x, i):
    w = lax.switch(i, [lambda: p["a"], lambda: 2 * p["b"], lambda: p["c"]])
    return head(p, x @ w)


@hard(X, T(), **WX)
def branch_scales_the_weight(p, x, i):
    return head(p, x @ lax.cond(i > 0, lambda w: w, lambda w: 0.5 * w, p["w"]))


@hard(
    A(2, 8, 8, 3),
    A(2, 6),
    style="io? 6 3",
    w="iiio 3 3 3 11",
    out="- 11 5",
)
def modulated_convolution(p, x, z):
    w = p["w"] * (z @ p["style"])[:, None, None, :, None]
    w = w * lax.rsqrt((w**2).sum((1, 2, 3), keepdims=True) + 1e-6)
    conv = lambda x, w: lax.conv_general_dilated(
        x[None], w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )[0]
    return head(p, jax.vmap(conv)(x, w).mean((1, 2)))


@hard(
    A(2, 8, 8, 3),
    A(2, 6),
    style="io? 6 3",
    w="iiio? 3 3 3 11",
    out="- 11 5",
)
def modulated_convolution_in_groups(p, x, z):
    w = p["w"] * (z @ p["style"])[:, None, None, :, None]
    w = jnp.moveaxis(w, 0, 3).reshape(3, 3, 3, 22)
    x = jnp.moveaxis(x, 0, 2).reshape(1, 8, 8, 6)
    y = lax.conv_general_dilated(
        x,
        w,
        (1, 1),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=2,
    )
    return head(p, y.reshape(8, 8, 2, 11).mean((0, 1)))


@hard(X, A(4, 7), **WX)
def scaled_for_each_example(p, x, s):
    return head(p, jnp.einsum("bi,bio->bo", x, p["w"] * s[:, :, None]))


@hard(X, A(4, 6), gate="io 6 12", w="io 7 12", out="- 12 5")
def gated_for_each_example(p, x, c):
    gate = jax.nn.sigmoid(c @ p["gate"])
    return head(p, jnp.einsum("bi,bio->bo", x, p["w"] * gate[:, None]))


@hard(X, A(4, 6), gate="io? 6 84", w="io 7 12", out="- 12 5")
def full_gate_for_each_example(p, x, c):
    gate = jax.nn.sigmoid(c @ p["gate"]).reshape(4, 7, 12)
    return head(p, jnp.einsum("bi,bio->bo", x, p["w"] * gate))


@hard(X, A(12), **WX)
def outputs_scaled_by_an_input(p, x, s):
    return head(p, x @ (p["w"] * s))


@hard(X, A(), score="io|-? 7 12", w="io 7 12", out="- 12 5")
def soft_pruning_by_temperature(p, x, t):
    return head(p, x @ (p["w"] * jax.nn.sigmoid(p["score"] / t)))


@hard(X, A(), **WX)
def weight_with_decay_in_the_loss(p, x, decay):
    return head(p, x @ p["w"]).sum() + decay * (p["w"] ** 2).sum()


# Parameters are the carry of a loop.


@hard(X, A(4, 12), w="io|-? 7 12")
def maml_by_scan(p, x, y):
    loss = lambda w: ((x @ w - y) ** 2).mean()
    step = lambda w, _: (w - 0.1 * jax.grad(loss)(w), None)
    return loss(lax.scan(step, p["w"], None, 3)[0])


@hard(X, A(4, 5), w="io? 7 12", out="-? 12 5")
def maml_by_fori(p, x, y):
    loss = lambda p: ((head(p, x @ p["w"]) - y) ** 2).mean()
    step = lambda _, p: jax.tree.map(lambda w, g: w - 0.1 * g, p, jax.grad(loss)(p))
    return loss(lax.fori_loop(0, 3, step, p))


@hard(A(4, 9, 8), q="io 8 6", k="io 8 6", v="io 8 10", s0="io? 6 10", out="- 10 5")
def fast_weights_with_a_start(p, x):
    q, k, v = (jnp.moveaxis(x @ p[n], 1, 0) for n in "qkv")

    def step(s, e):
        q, k, v = e
        s = s + k[:, :, None] * v[:, None, :]
        return s, jnp.einsum("bk,bkv->bv", q, s)

    s0 = jnp.broadcast_to(p["s0"], (4, 6, 10))
    return head(p, lax.scan(step, s0, (q, k, v))[1])


@hard(A(9, 8), k="io 8 6", v="io 8 10", w="io? 6 10", out="- 10 5")
def test_time_training(p, x):
    def step(w, t):
        k, v = t @ p["k"], t @ p["v"]
        w = w - 0.1 * jax.grad(lambda w: ((k @ w - v) ** 2).sum())(w)
        return w, k @ w

    return head(p, lax.scan(step, p["w"], x)[1])


@hard(X, A(4, 12), w="io|-? 7 12")
def solved_by_while(p, x, y):
    loss = lambda w: ((x @ w - y) ** 2).mean()
    step = lambda s: (s[0] - 0.1 * jax.grad(loss)(s[0]), s[1] + 1)
    return loss(lax.while_loop(lambda s: s[1] < 5, step, (p["w"], 0))[0])


@hard(X, w="io 7 7", out="- 7 5")
def weight_as_a_passive_carry(p, x):
    step = lambda _, s: (jnp.tanh(s[0] @ s[1]), s[1])
    return head(p, lax.fori_loop(0, 3, step, (x, p["w"]))[0])


@hard(X, w="io? 7 7", out="- 7 5")
def weight_that_a_loop_scales(p, x):
    step = lambda _, s: (jnp.tanh(s[0] @ s[1]), 0.9 * s[1])
    return head(p, lax.fori_loop(0, 3, step, (x, p["w"]))[0])


# Constant indices.

PERM = np.random.default_rng(0).permutation(7)


@hard(X, **WX)
def rows_permuted(p, x):
    return head(p, x @ p["w"][PERM])


@hard(X, **WX)
def columns_permuted(p, x):
    order = np.random.default_rng(0).permutation(12)
    return head(p, x @ jnp.take(p["w"], order, 1))


@hard(X, **WX)
def columns_interleaved(p, x):
    order = np.arange(12).reshape(2, 6).T.reshape(-1)
    return head(p, x @ p["w"][:, order])


@hard(A(4, 5), w="io 7 12", out="- 12 5")
def some_rows(p, x):
    return head(p, x @ p["w"][np.array([0, 2, 3, 5, 6])])


@hard(X, **WX)
def flipped(p, x):
    return head(p, x @ jnp.flip(p["w"], 0)[:, ::-1])


@hard(X, **WX)
def rolled(p, x):
    return head(p, x @ jnp.roll(p["w"], 3, 0))


@hard(X, T(7), **WX)
def permuted_by_an_input(p, x, order):
    return head(p, x @ p["w"][order])


# Rows of a table in other spellings.

TOKENS = T(4, 9)
EMB = {"emb": "- 20 7", "w": "io 7 12", "out": "- 12 5"}


@hard(TOKENS, A(4, 9), **EMB)
def one_hot_times_mask(p, t, mask):
    return head(p, (jax.nn.one_hot(t, 20) * mask[..., None]) @ p["emb"] @ p["w"])


@hard(TOKENS, **EMB)
def rows_of_the_identity(p, t):
    return head(p, jnp.eye(20)[t] @ p["emb"] @ p["w"])


@hard(TOKENS, **EMB)
def equal_to_numpy_range(p, t):
    hot = (t[..., None] == np.arange(20)).astype(jnp.float32)
    return head(p, hot @ p["emb"] @ p["w"])


@hard(TOKENS, **EMB)
def smoothed_one_hot(p, t):
    hot = 0.9 * jax.nn.one_hot(t, 20) + 0.1 / 20
    return head(p, hot @ p["emb"] @ p["w"])


@hard(TOKENS, **EMB)
def one_hot_by_einsum(p, t):
    hot = jax.nn.one_hot(t, 20, axis=1)
    return head(p, jnp.einsum("bvt,vd->btd", hot, p["emb"]) @ p["w"])


@hard(TOKENS, **EMB)
def one_hot_of_flat_tokens(p, t):
    hot = jax.nn.one_hot(t.reshape(-1), 20, dtype=jnp.bfloat16)
    x = (hot @ p["emb"].astype(jnp.bfloat16)).reshape(4, 9, 7)
    return head(p, x @ p["w"])


@hard(T(4), emb="-? 20 7", w="io 7 12", out="- 12 5")
def one_hot_by_scatter(p, t):
    hot = jnp.zeros((4, 20)).at[jnp.arange(4), t].set(1)
    return head(p, hot @ p["emb"] @ p["w"])


@hard(TOKENS, emb="-? 20 7", w="io 7 12", out="- 12 5")
def bag_as_a_sum_of_one_hots(p, t):
    return head(p, jax.nn.one_hot(t, 20).sum(1) @ p["emb"] @ p["w"])


@hard(X, T(4), w="io 10 12", out="- 12 5")
def one_hot_beside_features(p, x, action):
    h = jnp.concatenate([x, jax.nn.one_hot(action, 3)], -1) @ p["w"]
    return head(p, h)


@hard(X, T(4), w="bio? 3 7 12", out="- 12 5")
def one_hot_selects_an_expert(p, x, e):
    hot = jax.nn.one_hot(e, 3)
    return head(p, jnp.einsum("be,bi,eio->bo", hot, x, p["w"]))


@hard(X, T(), w="bio? 3 7 12", out="- 12 5")
def one_hot_selects_a_layer(p, x, i):
    return head(p, x @ jnp.einsum("l,lio->io", jax.nn.one_hot(i, 3), p["w"]))


@hard(X, T(4), w="bio? 3 7 12", out="- 12 5")
def mask_selects_an_expert(p, x, e):
    y = jnp.einsum("bi,eio->beo", x, p["w"])
    return head(p, (y * jax.nn.one_hot(e, 3)[..., None]).sum(1))


# Learned activations without data.


@hard(A(4, 9, 8), lat="-? 6 8", q="io? 8 10", k="io 8 10", v="io 8 12", out="- 12 5")
def latents_without_a_batch(p, x):
    q, k, v = p["lat"] @ p["q"], x @ p["k"], x @ p["v"]
    a = jax.nn.softmax(jnp.einsum("qd,bkd->bqk", q, k))
    return head(p, a @ v)


@hard(
    *(A(4, 9, 8),),
    **{"lat": "-? 6 8", "q1": "io? 8 10", "q2": "io? 10 8", "k": "io 8 8"},
    **{"v": "io 8 12", "out": "- 12 5"},
)
def latents_through_a_network(p, x):
    q = relu(p["lat"] @ p["q1"]) @ p["q2"]
    a = jax.nn.softmax(jnp.einsum("qd,bkd->bqk", q, x @ p["k"]))
    return head(p, a @ (x @ p["v"]))


# Factors with something between them.


@hard(X, u="io? 7 3", v="io? 3 12", out="- 12 5")
def product_of_tanh(p, x):
    return head(p, x @ (jnp.tanh(p["u"]) @ p["v"]))


@hard(X, u="io? 7 3", v="io? 3 12", out="- 12 5")
def tanh_of_product(p, x):
    return head(p, x @ jnp.tanh(p["u"] @ p["v"]))


@hard(X, w0="io 7 12", u="io? 7 3", v="io? 3 12", out="- 12 5")
def base_plus_tanh_of_product(p, x):
    return head(p, x @ (p["w0"] + jnp.tanh(p["u"] @ p["v"])))


@hard(T(4), emb="- 20 3", proj="io? 3 7", w="io 7 12", out="- 12 5")
def projected_table_then_rows(p, t):
    return head(p, (p["emb"] @ p["proj"])[t] @ p["w"])


@hard(A(4, 9, 7), pre="-? 2 5", re="io? 5 7", w="io 7 12", out="- 12 5")
def projected_prefix(p, x):
    pre = jnp.broadcast_to(p["pre"] @ p["re"], (4, 2, 7))
    return head(p, jnp.concatenate([pre, x], 1) @ p["w"])


@hard(A(9, 7), pre="-? 2 5", re="io? 5 7", w="io 7 12", out="- 12 5")
def projected_prefix_of_one_sequence(p, x):
    return head(p, jnp.concatenate([p["pre"] @ p["re"], x]) @ p["w"])


# Two directions.


@hard(X, A(12), **WX)
def spectral_norm_with_u_as_input(p, x, u):
    v = p["w"] @ u
    v = v / jnp.linalg.norm(v)
    u = v @ p["w"]
    sigma = lax.stop_gradient(v) @ p["w"] @ lax.stop_gradient(u / jnp.linalg.norm(u))
    return head(p, x @ (p["w"] / sigma))


@hard(X, w="io? 7 12", out="- 12 5")
def centred_by_a_product(p, x):
    mean = p["w"] @ jnp.ones((12, 1)) / 12
    return head(p, x @ (p["w"] - mean))


@hard(X, w="io? 7 12", out="- 12 5")
def centred_by_a_product_before(p, x):
    mean = jnp.ones((1, 7)) @ p["w"] / 7
    return head(p, x @ (p["w"] - mean))


@hard(X, A(4, 12), w="io|oi? 7 12", out="- 12 5", out2="- 7 6")
def two_inputs_in_two_directions(p, x, y):
    return head(p, x @ p["w"]), relu(y @ p["w"].T) @ p["out2"]


@hard(X, A(12), w="io|oi? 7 12", out="- 12 5")
def probe_backwards_before(p, x, u):
    scale = jnp.tanh(p["w"] @ u)
    return head(p, (x * scale) @ p["w"])


# Routers.

ROUTED = {"router": "- 7 3", "w": "bio 3 7 12", "out": "- 12 5"}


def experts(p, x, gates):
    return head(
        p, jnp.einsum("be,beo->bo", gates, jnp.einsum("bi,eio->beo", x, p["w"]))
    )


@hard(X, router="-? 7 3", w="bio 3 7 12", out="- 12 5")
def router_by_sinkhorn(p, x):
    k = jnp.exp(x @ p["router"])

    def step(_, k):
        k = k / k.sum(0)
        return k / k.sum(1, keepdims=True)

    k = lax.fori_loop(0, 3, step, k)
    g, e = lax.top_k(k, 2)
    return experts(p, x, (jax.nn.one_hot(e, 3) * g[..., None]).sum(1))


@hard(X, router="-? 7 3", w="bio 3 7 12", out="- 12 5")
def router_with_one_expert_off(p, x):
    logits = (x @ p["router"]).at[:, 1].set(-jnp.inf)
    g, e = lax.top_k(logits, 2)
    return experts(p, x, (jax.nn.one_hot(e, 3) * g[..., None]).sum(1))


@hard(X, T(4), router="-? 7 3", w="bio 3 7 12", out="- 12 5")
def router_masked_by_scatter(p, x, bad):
    logits = (x @ p["router"]).at[jnp.arange(4), bad].add(-1e9)
    e = jnp.argmax(logits, -1)
    return experts(p, x, jax.nn.one_hot(e, 3) * jax.nn.sigmoid(logits))


@hard(X, **ROUTED)
def router_in_bits(p, x):
    logits = jnp.log2(1 + jnp.exp(x @ p["router"]))
    g, e = lax.top_k(logits, 2)
    return experts(p, x, (jax.nn.one_hot(e, 3) * g[..., None]).sum(1))


@hard(X, router="-? 7 3", w="bio 3 7 12", out="- 12 5")
def router_smoothed_over_tokens(p, x):
    logits = jnp.cumsum(x @ p["router"], 0)
    e = jnp.argmax(logits, -1)
    return experts(p, x, jax.nn.one_hot(e, 3) * jax.nn.sigmoid(logits))


@hard(X, router="-? 7 3", w="bio 3 7 12", out="- 12 5")
def router_padded_by_a_null_expert(p, x):
    logits = jnp.concatenate([x @ p["router"], jnp.zeros((4, 1))], -1)
    g, e = lax.top_k(jax.nn.softmax(logits), 2)
    return experts(p, x, (jax.nn.one_hot(e, 4) * g[..., None]).sum(1)[:, :3])


@hard(X, router="-? 7 3", w="bio 3 7 12", out="- 12 5")
def router_by_expert_choice(p, x):
    s = jax.nn.softmax(x @ p["router"], -1)
    g, i = lax.top_k(s.T, 2)
    y = jnp.einsum("eci,eio->eco", x[i], p["w"])
    hot = jax.nn.one_hot(i, 4) * g[..., None]
    return head(p, jnp.einsum("ecb,eco->bo", hot, y))


# Kernels that are chosen or mixed.


@hard(A(2, 8, 8, 3), route="io|-? 3 4", w="biiio? 4 3 3 3 11", out="- 11 5")
def mixed_convolutions(p, x):
    r = jax.nn.sigmoid(x.mean((1, 2)) @ p["route"])
    w = jnp.einsum("be,ehwio->bhwio", r, p["w"])
    conv = lambda x, w: lax.conv_general_dilated(
        x[None], w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )[0]
    return head(p, jax.vmap(conv)(x, w).mean((1, 2)))


@hard(A(2, 8, 8, 3), T(), w="biiio 4 3 3 3 11", out="- 11 5")
def chosen_convolution(p, x, i):
    y = lax.conv_general_dilated(
        x, p["w"][i], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return head(p, y.mean((1, 2)))


@hard(A(2, 8, 8, 3), T(2), w="biiio 4 3 3 3 11", out="- 11 5")
def chosen_convolution_for_each_example(p, x, i):
    conv = lambda x, w: lax.conv_general_dilated(
        x[None], w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )[0]
    return head(p, jax.vmap(conv)(x, p["w"][i]).mean((1, 2)))


@hard(X, A(4, 3), w="bio|iio? 3 7 12", out="- 12 5")
def three_operands(p, x, g):
    return head(p, jnp.einsum("be,bi,eio->bo", g, x, p["w"]))


@hard(X, A(4, 3), w="bio|iio? 3 7 12", out="- 12 5")
def three_operands_from_the_left(p, x, g):
    path = [(0, 2), (0, 1)]
    return head(p, jnp.einsum("be,bi,eio->bo", g, x, p["w"], optimize=path))


@hard(X, A(4, 3), w="bio|iio? 3 7 12", out="- 12 5")
def three_operands_from_the_right(p, x, g):
    path = [(1, 2), (0, 1)]
    return head(p, jnp.einsum("be,bi,eio->bo", g, x, p["w"], optimize=path))


@hard(X, T(4), w="bio 3 7 12", out="- 12 5")
def chosen_matrix(p, x, i):
    return head(p, jnp.einsum("bi,bio->bo", x, p["w"][i]))


# Last layers in other spellings.


@hard(X, **WX)
def last_layer_by_hand(p, x):
    return (relu(x @ p["w"])[..., None] * p["out"]).sum(-2)


@hard(X, T(4), w="io 7 12", out="- 3 12 5")
def last_layer_of_a_task(p, x, i):
    return jnp.einsum("bd,bdo->bo", relu(x @ p["w"]), p["out"][i])


@hard(X, w="io 7 12", up="io 12 9", out="- 9 5")
def layers_by_hand(p, x):
    by_hand = lambda x, w: (x[..., None] * w).sum(-2)
    return by_hand(relu(by_hand(relu(by_hand(x, p["w"])), p["up"])), p["out"])


@hard(X, T(4), w="io 7 12", mid="bio 3 12 9", out="- 9 5")
def inner_layer_of_a_task(p, x, i):
    h = jnp.einsum("bd,bdo->bo", relu(x @ p["w"]), p["mid"][i])
    return head(p, h)


# Columns or rows one by one.


@hard(X, w="io? 7 12", out="- 12 5")
def mapped_over_columns(p, x):
    return head(p, lax.map(lambda w: x @ w, p["w"].T).T)


@hard(X, w="io? 7 12", out="- 12 5")
def vmapped_over_columns(p, x):
    return head(p, jax.vmap(lambda w: x @ w, in_axes=1, out_axes=-1)(p["w"]))


@hard(X, w="io? 7 12", out="- 12 5")
def columns_written_one_by_one(p, x):
    y = jnp.zeros((4, 12))
    for i in range(12):
        y = y.at[:, i].set(x @ p["w"][:, i])
    return head(p, y)


@hard(X, w="io? 7 12", out="- 12 5")
def columns_stacked(p, x):
    return head(p, jnp.stack([x @ p["w"][:, i] for i in range(12)], -1))


@hard(X, w="oi? 12 7", out="- 12 5")
def rows_stacked(p, x):
    return head(p, jnp.stack([x @ row for row in p["w"]], -1))


@hard(X, w="io? 7 12", out="- 12 5")
def scan_over_outer_products(p, x):
    step = lambda y, e: (y + e[0][:, None] * e[1], None)
    return head(p, lax.scan(step, jnp.zeros((4, 12)), (x.T, p["w"]))[0])


@hard(X, w="io? 7 12", out="- 12 5")
def outer_products_unrolled(p, x):
    return head(p, sum(x[:, i : i + 1] * p["w"][i] for i in range(7)))


@hard(X, w="io? 7 12", out="- 12 5")
def columns_by_fori(p, x):
    step = lambda i, y: y.at[:, i].set(x @ p["w"][:, i])
    return head(p, lax.fori_loop(0, 12, step, jnp.zeros((4, 12))))


# Primitives.


@hard(A(4, 14), w="io? 7 12", out="- 12 5")
def tiled(p, x):
    return head(p, x @ jnp.tile(p["w"], (2, 1)))


@hard(A(4, 14), w="io? 7 12", out="- 12 5")
def repeated(p, x):
    return head(p, x @ jnp.repeat(p["w"], 2, 0))


@hard(X, w="io? 7 12", out="- 12 5")
def summed_up_along_the_inputs(p, x):
    return head(p, x @ jnp.cumsum(p["w"], 0))


@hard(X, w="io? 7 12", out="- 12 5")
def reciprocal_of_the_weight(p, x):
    return head(p, x @ jnp.reciprocal(p["w"]))


@hard(A(4, 7), w="io|-? 7 12", out="- 12 5")
def fourier_transform_of_the_weight(p, x):
    return head(p, x @ jnp.fft.fft(p["w"], axis=0).real)


@hard(X, w="io? 7 12", out="- 12 5")
def custom_vmap_of_a_product(p, x):
    product = jax.custom_batching.custom_vmap(lambda x, w: x @ w)

    @product.def_vmap
    def _(_size, _batched, x, w):
        return x @ w, True

    return head(p, jax.vmap(product, (0, None))(x, p["w"]))


@hard(X, w="io? 7 12", out="- 12 5")
def reduced_by_another_function(p, x):
    y = x[:, :, None] * p["w"]
    return head(p, lax.reduce(y, 0.0, lambda a, b: a + b + 0 * b, (1,)))


TABLE = np.random.default_rng(0).standard_normal((9, 7)).astype("f")


@hard(T(), **WX)
def slice_of_a_constant(p, t):
    return head(p, lax.dynamic_slice(jnp.asarray(TABLE), (t, 0), (4, 7)) @ p["w"])


@hard(T(4), **WX)
def rows_of_a_constant(p, t):
    return head(p, jnp.asarray(TABLE)[t] @ p["w"])


# Learned queries.


@hard(A(4, 9, 8), qs="-|oi? 3 8", v="io 8 12", out="- 12 5")
def queries_that_meet_data(p, x):
    a = jax.nn.softmax(jnp.einsum("qd,bnd->bqn", p["qs"], x))
    return head(p, a @ x @ p["v"])


@hard(A(4, 9, 8), k="io 8 10", qs="-|oi? 3 10", v="io 8 12", out="- 12 5")
def queries_that_meet_keys(p, x):
    a = jax.nn.softmax(jnp.einsum("qd,bnd->bqn", p["qs"], x @ p["k"]))
    return head(p, a @ (x @ p["v"]))


# Splits that are joined again.


@hard(A(4, 9, 7), q="io 7 12", k="io 7 12", v="io 7 12", out="- 12 5")
def rotary_on_half(p, x):
    angle = jnp.arange(9.0)[:, None] * jnp.array([1.0, 0.1, 0.01])

    def rotated(x):
        rest, x = x[..., :6], x[..., 6:]
        a, b = x[..., :3], x[..., 3:]
        c, s = jnp.cos(angle), jnp.sin(angle)
        return jnp.concatenate([rest, a * c - b * s, b * c + a * s], -1)

    q, k, v = (x @ p[n] for n in "qkv")
    return head(p, jax.nn.softmax(rotated(q) @ rotated(k).mT) @ v)


@hard(X, w="io|io/2? 7 12", s="io 6 6", out="- 12 5")
def coupling_layer(p, x):
    a, b = jnp.split(x @ p["w"], 2, -1)
    return head(p, jnp.concatenate([a, b * jnp.exp(jnp.tanh(a @ p["s"]))], -1))


@hard(A(4, 9, 7), w="io 7 12", mix="-? 12", out="- 12 5")
def part_of_the_channels_shifted(p, x):
    h = x @ p["w"]
    a, b = h[..., :4], h[..., 4:]
    a = jnp.pad(a, ((0, 0), (1, 0), (0, 0)))[:, :-1]
    return head(p, jnp.concatenate([a, b], -1) * p["mix"])


# Programs on devices, in the modes that crashed.


def on_devices(f, specs, out):
    kind = jax.sharding.AxisType.Auto
    mesh = jax.make_mesh((2,), ("m",), axis_types=(kind,))
    return jax.shard_map(f, mesh=mesh, in_specs=specs, out_specs=out, check_vma=False)


@hard(A(4, 8), w="io 8 12", out="- 12 5")
def gathered_in_one_more_axis(p, x):
    def f(x, w):
        w = lax.all_gather(w, "m")
        return x @ w.reshape(8, 12)

    return head(p, on_devices(f, (P(), P("m")), P())(x, p["w"]))


@hard(A(4, 8), w="io 8 12", out="- 12 5")
def gathered_tiled(p, x):
    f = lambda x, w: x @ lax.all_gather(w, "m", tiled=True)
    return head(p, on_devices(f, (P(), P("m")), P())(x, p["w"]))


@hard(A(2, 8), w="io 8 12", out="- 12 5")
def scattered_sum_loses_an_axis(p, x):
    f = lambda x, w: lax.psum_scatter(x @ w, "m")
    y = on_devices(f, (P(None, "m"), P("m")), P("m"))(x, p["w"])
    return head(p, y.reshape(2, 12))


@hard(A(4, 8), w="io 8 12", out="- 12 5")
def scattered_sum_tiled(p, x):
    f = lambda x, w: lax.psum_scatter(x @ w, "m", tiled=True)
    return head(p, on_devices(f, (P(None, "m"), P("m")), P("m"))(x, p["w"]))


@hard(A(4, 8), w="io 8 12", out="- 12 5")
def exchanged_between_devices(p, x):
    def f(x, w):
        x = lax.all_to_all(x, "m", 1, 0, tiled=True)
        return x @ w

    return head(p, on_devices(f, (P(None, None), P()), P("m"))(x.repeat(2, 1), p["w"]))
