"""Tiny models written to mislead a reader of programs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from _uses.battery import A, T, small
from jax import lax

attack = functools.partial(small, "attack")
KEY = jax.eval_shape(lambda: jax.random.key(0))
X, SEQ = A(4, 7), A(4, 9, 7)
relu, softmax = jax.nn.relu, jax.nn.softmax
IO = {"w": "io 7 12", "out": "- 12 5"}
EMB = {"emb": "- 20 7", "w": "io 7 12", "out": "- 12 5"}
SQUARE = {"w": "io|oi? 7 7", "out": "- 7 5"}


def head(p, h):
    return relu(h) @ p["out"]


def conv(x, w, layout=("NHWC", "HWIO", "NHWC"), **options):
    strides = options.pop("strides", (1,) * (w.ndim - 2))
    padding = options.pop("padding", "SAME")
    return lax.conv_general_dilated(
        x, w, strides, padding, dimension_numbers=layout, **options
    )


# Tables that meet a constant.


@attack(SEQ, pos="- 9 7", w="io 7 12", out="- 12 5")
def positions_by_constant_one_hot(p, x):
    return head(p, (x + jax.nn.one_hot(np.arange(9), 9) @ p["pos"]) @ p["w"])


@attack(SEQ, pos="-? 5 7", w="io 7 12", out="- 12 5")
def positions_interpolated(p, x):
    pos = jax.image.resize(p["pos"], (9, 7), "linear")
    return head(p, (x + pos) @ p["w"])


@attack(A(4, 36, 7), pos="-? 3 3 7", w="io 7 12", out="- 12 5")
def positions_of_an_image_interpolated(p, x):
    pos = jax.image.resize(p["pos"], (6, 6, 7), "bilinear")
    return head(p, (x + pos.reshape(36, 7)) @ p["w"])


@attack(SEQ, pos="-? 3 7", w="io 7 12", out="- 12 5")
def positions_in_a_fixed_basis(p, x):
    basis = np.cos(np.arange(9)[:, None] * np.arange(3) * 0.3).astype("f")
    return head(p, (x + basis @ p["pos"]) @ p["w"])


@attack(
    SEQ, bias="-? 6 3", q="io 7 12", k="io 7 12", v="io 7 12", out="- 12 5"
)  # fmt: skip
def relative_bias_by_constant_one_hot(p, x):
    q, k, v = ((x @ p[n]).reshape(4, 9, 3, 4) for n in "qkv")
    i = np.arange(9)
    bucket = np.clip(np.abs(i[:, None] - i), 0, 5)
    bias = jnp.einsum("qkb,bh->hqk", jax.nn.one_hot(bucket, 6), p["bias"])
    s = softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) + bias)
    return head(p, jnp.einsum("bhqk,bkhd->bqhd", s, v).reshape(4, 9, 12))


@attack(SEQ, kind="- 2 7", w="io 7 12", out="- 12 5")
def constant_kinds_of_tokens(p, x):
    return head(p, (x + p["kind"][jnp.zeros(9, int)]) @ p["w"])


@attack(A(2, 8, 8, 3), w="iiio? 5 5 3 11", out="- 11 5")
def resized_kernel(p, x):
    w = jax.image.resize(p["w"], (3, 3, 3, 11), "linear")
    return head(p, conv(x, w).mean((1, 2)))


@attack(X, w="io? 5 12", out="- 12 5")
def weight_in_a_fixed_basis(p, x):
    basis = np.cos(np.arange(7)[:, None] * np.arange(5) * 0.3).astype("f")
    return head(p, x @ (basis @ p["w"]))


@attack(A(4, 6), const="- 4 4 8", style="io 6 8", w="iiio 3 3 8 11", out="- 11 5")
def learned_constant_of_a_generator(p, z):
    x = jnp.broadcast_to(p["const"], (4, 4, 4, 8)) * (z @ p["style"])[:, None, None]
    return head(p, conv(x, p["w"]).mean((1, 2)))


@attack(A(4, 6), const="-? 4 4 8", w="iiio? 3 3 8 11", style="io 6 11", out="- 11 5")
def learned_constant_convolved_first(p, z):
    x = conv(jnp.broadcast_to(p["const"], (4, 4, 4, 8)), p["w"])
    return head(p, (x * (z @ p["style"])[:, None, None]).mean((1, 2)))


# Tables in other shapes.


@attack(T(4), **{"emb": "- 7 20", "w": "io 7 12", "out": "- 12 5"})
def table_by_columns(p, t):
    return head(p, p["emb"][:, t].T @ p["w"])


@attack(T(4, 9), emb="- 7 20", w="io 7 12", out="- 12 5")
def table_by_columns_take(p, t):
    return head(p, jnp.moveaxis(jnp.take(p["emb"], t, 1), 0, -1) @ p["w"])


@attack(T(), **EMB)
def one_row(p, t):
    return head(p, p["emb"][t] @ p["w"])


@attack(T(4), **EMB)
def rows_one_by_one(p, t):
    f = lambda t: lax.dynamic_index_in_dim(p["emb"], t, 0, False)
    return head(p, lax.map(f, t) @ p["w"])


@attack(T(4), **EMB)
def rows_with_a_filler(p, t):
    x = p["emb"].at[t].get(mode="fill", fill_value=0)
    return head(p, jnp.where((t > 0)[:, None], x, 0) @ p["w"])


@attack(T(3, 4), emb="- 3 20 7", w="bio 3 7 12", out="- 3 12 5")
def tables_of_members(p, t):
    f = lambda emb, w, out, t: relu(emb[t] @ w) @ out
    return jax.vmap(f)(p["emb"], p["w"], p["out"], t)


@attack(T(4), emb="- 20 3 7", w="io 7 12", out="- 12 5")
def tables_of_members_in_the_middle(p, t):
    x = jax.vmap(lambda emb: emb[t], 1)(p["emb"])
    return head(p, x.sum(0) @ p["w"])


@attack(T(4, 9), T(4, 9), both="- 29 7", w="io 7 12", out="- 12 5")
def two_tables_in_one(p, t, at):
    return head(p, (p["both"][:20][t] + p["both"][20:][at]) @ p["w"])


@attack(T(4), a="- 5 7", b="- 4 7", w="io 7 12", out="- 12 5")
def quotient_and_remainder(p, t):
    return head(p, (p["a"][t // 4] * p["b"][t % 4]) @ p["w"])


@attack(T(4), a="-? 5 2 3", b="-? 4 3 6", w="io 12 9", out="- 9 5")
def tables_of_a_tensor_train(p, t):
    x = jnp.einsum("bir,brj->bij", p["a"][t // 4], p["b"][t % 4])
    return head(p, x.reshape(4, 12) @ p["w"])


@attack(T(4), A(4, 3), emb="-? 20 3 7", w="io 7 12", out="- 12 5")
def several_rows_mixed_by_gates(p, t, g):
    return head(p, jnp.einsum("bm,bmd->bd", softmax(g), p["emb"][t]) @ p["w"])


@attack(T(4, 9), A(4, 7), emb="- 20 7", w="io 7 12", out="- 12 5")
def attention_over_rows(p, t, q):
    rows = p["emb"][t]
    a = softmax(jnp.einsum("bd,bnd->bn", q, rows))
    return head(p, jnp.einsum("bn,bnd->bd", a, rows) @ p["w"])


@attack(SEQ, T(), pos="- 30 7", w="io 7 12", out="- 12 5")
def window_of_positions(p, x, t):
    return head(p, (x + lax.dynamic_slice_in_dim(p["pos"], t, 9)) @ p["w"])


@attack(X, curve="-? 7 9", w="io 7 12", out="- 12 5")
def learned_curve_of_each_feature(p, x):
    f = lambda x, table: jnp.interp(x, jnp.linspace(-1, 1, 9), table)
    return head(p, jax.vmap(f, (1, 0), 1)(x, p["curve"]) @ p["w"])


@attack(T(4, 9), emb="-|io 20 7", w="io 9 6", v="io 7 12", out="- 12 5")
def one_hot_mixed_in_time(p, t):
    h = jnp.einsum("btv,to->bov", jax.nn.one_hot(t, 20), p["w"])
    return head(p, h @ p["emb"] @ p["v"])


@attack(T(4, 9), w="-|io|iio? 20 12", out="- 12 5")
def one_hot_summed_in_time(p, t):
    return head(p, jnp.einsum("btv,vo->bo", jax.nn.one_hot(t, 20), p["w"]))


@attack(T(4), T(4, 9), **EMB)
def mask_of_equal_segments(p, s, t):
    same = (s[:, None] == jnp.arange(4)).astype(jnp.float32)
    return head(p, jnp.einsum("bc,ctd->btd", same, p["emb"][t]) @ p["w"])


# Chosen matrices.


@attack(A(4, 7), T(4), ws="bio 3 7 12", out="- 12 5")
def layer_of_each_example(p, x, i):
    f = lambda x, i: x @ lax.dynamic_index_in_dim(p["ws"], i, 0, False)
    return head(p, jax.vmap(f)(x, i))


@attack(X, T(), ws="bio 3 7 12", out="- 12 5")
def layer_by_dynamic_slice(p, x, i):
    return head(p, x @ lax.dynamic_slice_in_dim(p["ws"], i, 1)[0])


@attack(X, T(), w="io? 7 12", out="- 4 5")
def block_of_columns(p, x, i):
    return head(p, x @ lax.dynamic_slice(p["w"], (0, 4 * i), (7, 4)))


@attack(X, T(4), w="io|-? 7 12", out="- 4 5")
def columns_chosen_by_data(p, x, i):
    return head(p, x @ p["w"][:, i])


@attack(X, T(4), w="io? 7 12", out="- 12 5")
def rows_chosen_by_data(p, x, i):
    return head(p, x[:, :4] @ p["w"][i])


@attack(A(4, 4, 7), ws="bio 3 7 12", out="- 12 5")
def layers_shared_by_groups(p, x):
    w = p["ws"][np.array([0, 0, 1, 2])]
    return head(p, jnp.einsum("bgi,gio->bgo", x, w))


@attack(X, ws="bio 2 7 7", out="- 7 5")
def layers_repeated_in_a_scan(p, x):
    step = lambda x, w: (x + jnp.tanh(x @ w), None)
    return head(p, lax.scan(step, x, p["ws"][np.array([0, 1, 0])])[0])


@attack(X, ws="bio 4 7 7", out="- 7 5")
def neighbouring_layers_in_a_scan(p, x):
    step = lambda x, w: (jnp.tanh(jnp.tanh(x @ w[0]) @ w[1]), None)
    return head(p, lax.scan(step, x, (p["ws"][:-1], p["ws"][1:]))[0])


@attack(X, ws="bio 3 7 7", out="- 7 5")
def weights_normed_by_a_scan(p, x):
    _, ws = lax.scan(lambda c, w: (c, w / jnp.linalg.norm(w)), None, p["ws"])
    return head(p, lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, ws)[0])


@attack(X, ws="bio 3 7 7", out="- 7 5")
def weights_normed_by_a_map(p, x):
    ws = lax.map(lambda w: w - w.mean(), p["ws"])
    for w in ws:
        x = jnp.tanh(x @ w)
    return head(p, x)


@attack(X, T(4), ws="bio 3 7 12", b="- 3 12", out="- 12 5")
def task_layers_all_computed(p, x, i):
    y = jnp.einsum("bi,kio->bko", x, p["ws"]) + p["b"]
    return head(p, jnp.take_along_axis(y, i[:, None, None], 1)[:, 0])


# Sections and heads.


@attack(SEQ, qkv="io/3|io? 7 36", out="- 12 5")
def fused_head_by_head(p, x):
    h = (x @ p["qkv"]).reshape(4, 9, 3, 3, 4)
    q, k, v = h[..., 0, :], h[..., 1, :], h[..., 2, :]
    s = softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
    return head(p, jnp.einsum("bhqk,bkhd->bqhd", s, v).reshape(4, 9, 12))


@attack(SEQ, qkv="io/3|io? 7 36", out="- 12 5")
def fused_with_three_last(p, x):
    h = (x @ p["qkv"]).reshape(4, 9, 3, 4, 3)
    q, k, v = h[..., 0], h[..., 1], h[..., 2]
    s = softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
    return head(p, jnp.einsum("bhqk,bkhd->bqhd", s, v).reshape(4, 9, 12))


@attack(SEQ, qkv="io/(12,4,4) 7 20", o="io 12 8", out="- 8 5")
def fused_with_fewer_keys(p, x):
    q, k, v = jnp.split(x @ p["qkv"], (12, 16), -1)
    q = q.reshape(4, 9, 3, 4)
    s = softmax(jnp.einsum("bqhd,bkd->bhqk", q, k))
    y = jnp.einsum("bhqk,bkd->bqhd", s, v).reshape(4, 9, 12)
    return head(p, y @ p["o"])


@attack(SEQ, w="io/(12,12,12,24) 7 60", o="io 36 8", out="- 8 5")
def fused_with_the_other_branch(p, x):
    q, k, v, h = jnp.split(x @ p["w"], (12, 24, 36), -1)
    q, k, v = (y.reshape(4, 9, 3, 4) for y in (q, k, v))
    s = softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
    y = jnp.einsum("bhqk,bkhd->bqhd", s, v).reshape(4, 9, 12)
    return head(p, jnp.concatenate([y, relu(h)], -1) @ p["o"])


@attack(X, w="io? 7 24", mid="io 12 9", out="- 9 5")
def gates_interleaved(p, x):
    h = (x @ p["w"]).reshape(4, 12, 2)
    return head(p, (h[..., 0] * jnp.tanh(h[..., 1])) @ p["mid"])


@attack(X, w="io|io/2? 7 24", mid="io 12 9", out="- 9 5")
def gates_interleaved_by_strides(p, x):
    h = x @ p["w"]
    return head(p, (h[:, ::2] * jnp.tanh(h[:, 1::2])) @ p["mid"])


@attack(X, w="io|io/2? 7 24", mid="io 12 9", out="- 9 5")
def weights_interleaved_by_strides(p, x):
    a, b = p["w"][:, ::2], p["w"][:, 1::2]
    return head(p, ((x @ a) * jnp.tanh(x @ b)) @ p["mid"])


@attack(X, w="io 7 12", a="- 4 5", b="- 8 5", c="- 12 5")
def nested_representations(p, x):
    h = relu(x @ p["w"])
    return h[:, :4] @ p["a"], h[:, :8] @ p["b"], h @ p["c"]


@attack(SEQ, w="io 7 12", out="- 12 5")
def differences_in_time(p, x):
    h = x @ p["w"]
    return head(p, h[:, 1:] - h[:, :-1])


@attack(X, w="io 7 12", out="- 11 5")
def differences_of_channels(p, x):
    h = x @ p["w"]
    return head(p, h[:, 1:] - h[:, :-1])


@attack(X, w="io 7 12", mid="io 12 9", out="- 9 5")
def channels_rolled(p, x):
    return head(p, jnp.roll(x @ p["w"], 5, -1) @ p["mid"])


@attack(X, w="io 7 12", mid="io 12 9", out="- 9 5")
def channels_shuffled(p, x):
    h = (x @ p["w"]).reshape(4, 3, 4).swapaxes(1, 2).reshape(4, 12)
    return head(p, h @ p["mid"])


@attack(X, w="ioo|ibo? 7 3 4", mid="bio 3 4 6", out="- 6 5")
def heads_with_layers_of_their_own(p, x):
    h = jnp.tanh(jnp.einsum("bi,ihk->bhk", x, p["w"]))
    return head(p, jnp.einsum("bhk,hko->bho", h, p["mid"]).mean(1))


@attack(A(4, 8), a="bio 4 2 3", b="bio 3 4 6", out="- 18 5")
def two_block_diagonals_with_a_shuffle(p, x):
    h = jnp.einsum("bki,kio->bko", x.reshape(4, 4, 2), p["a"]).swapaxes(1, 2)
    return head(p, jnp.einsum("bki,kio->bko", h, p["b"]).reshape(4, 18))


# Signs of routers and last layers that are none.


@attack(X, w1="io 7 12", w2="io 12 9", out="- 9 5")
def logs_the_maximum(p, x):
    h = relu(x @ p["w1"])
    g = relu(h @ p["w2"])
    return g @ p["out"], {"max1": h.max(), "max2": g.max(), "norm": (h**2).sum()}


@attack(X, w1="io? 7 12", w2="io? 12 9", out="- 9 5")
def logs_the_busiest_unit(p, x):
    h = relu(x @ p["w1"])
    g = relu(h @ p["w2"])
    return g @ p["out"], jnp.argmax(h, -1), jnp.argmax(g.mean(0))


@attack(X, T(4), w="io 7 12", out="- 12 5")
def accuracy_in_the_loss(p, x, y):
    z = head(p, x @ p["w"])
    return jax.nn.log_softmax(z)[jnp.arange(4), y], (z.argmax(-1) == y).mean()


@attack(X, w="io 7 12", out="- 12 5")
def returns_its_features(p, x):
    h = x @ p["w"]
    return head(p, h), h


@attack(SEQ, q="io? 7 12", k="io? 7 12", v="io 7 12", out="- 12 5")
def softmax_over_features(p, x):
    q, k, v = softmax(x @ p["q"], -1), softmax(x @ p["k"], 1), x @ p["v"]
    return head(p, q @ jnp.einsum("btk,btv->bkv", k, v))


@attack(T(4), emb="- 20 7", w="io 7 7", out="- 7 20")
def generates_in_a_scan(p, t):
    def step(c, _):
        t, h = c
        h = jnp.tanh(p["emb"][t] + h @ p["w"])
        z = h @ p["out"]
        return (jnp.argmax(z, -1), h), z

    return lax.scan(step, (t, jnp.zeros((4, 7))), None, 3)[1]


@attack(T(4), KEY, emb="- 20 7", w="io 7 7", out="-? 7 20")
def samples_in_a_scan(p, t, key):
    def step(c, key):
        t, h = c
        h = jnp.tanh(p["emb"][t] + h @ p["w"])
        z = h @ p["out"]
        return (jax.random.categorical(key, z), h), jax.nn.log_softmax(z)

    keys = jax.random.split(key, 3)
    return lax.scan(step, (t, jnp.zeros((4, 7))), keys)[1]


@attack(SEQ, A(4, 20, 7), T(), q="io 7 12", k="io 7 7", v="io 7 12", out="- 12 5")
def decoding_with_a_cache(p, x, cache, at):
    cache = lax.dynamic_update_slice(cache, x @ p["k"], (0, at, 0))
    v = cache @ p["v"]
    s = softmax(jnp.einsum("bqd,bkd->bqk", x @ p["q"], cache @ p["v"]))
    return head(p, s @ v)


@attack(
    SEQ, A(4, 20, 3, 4), T(), q="io 7 12", k="io 7 12", v="io 7 12", o="io 12 7",
    out="- 7 5",
)  # fmt: skip
def decoding_with_a_cache_of_heads(p, x, cache, at):
    q, k, v = ((x @ p[n]).reshape(4, 9, 3, 4) for n in "qkv")
    keys = lax.dynamic_update_slice(cache, k, (0, at, 0, 0))
    values = cache.at[:, at + jnp.arange(9)].set(v)
    s = softmax(jnp.einsum("bqhd,bkhd->bhqk", q, keys))
    y = jnp.einsum("bhqk,bkhd->bqhd", s, values).reshape(4, 9, 12)
    return head(p, x + y @ p["o"])


@attack(X, w="io 7 12", out="- 12 5")
def masked_softmax_scores_of_labels(p, x):
    z = head(p, x @ p["w"])
    z = jnp.where(jnp.arange(5) < 3, z, -jnp.inf)
    return jax.nn.logsumexp(z, -1) - z[:, 0]


@attack(X, w="io 7 12", hidden="io? 12 9", out="- 9 5")
def entropy_of_a_hidden_layer(p, x):
    h = relu(x @ p["w"]) @ p["hidden"]
    entropy = (softmax(h) * jax.nn.log_softmax(h)).sum(-1)
    return head(p, h), entropy


@attack(X, w="io 7 12", codes="io|-? 12 8", out="- 8 5")
def balanced_by_sinkhorn(p, x):
    z = relu(x @ p["w"]) @ p["codes"]
    q = jnp.exp(lax.stop_gradient(z))
    for _ in range(2):
        q = q / q.sum(0)
        q = q / q.sum(1, keepdims=True)
    return head(p, z), (q * jax.nn.log_softmax(z)).sum()


# Derivatives in the forward pass.


@attack(X, A(4, 5), w="io 7 12", mid="io 12 9", out="-? 9 5")
def adversarial_examples(p, x, y):
    loss = lambda x: ((head(p, relu(x @ p["w"]) @ p["mid"]) - y) ** 2).mean()
    return loss(x + 0.1 * jnp.sign(jax.grad(loss)(x)))


@attack(X, A(4, 5), w="io 7 12", mid="io 12 9", out="-? 9 5")
def sharpness_aware(p, x, y):
    loss = lambda p: ((head(p, relu(x @ p["w"]) @ p["mid"]) - y) ** 2).mean()
    g = jax.grad(loss)(p)
    norm = jnp.sqrt(sum((a**2).sum() for a in jax.tree.leaves(g)))
    return loss(jax.tree.map(lambda w, g: w + 0.1 * g / norm, p, g))


@attack(A(8), w1="io? 8 12", w2="io? 12 9", out="-? 9 2")
def hamiltonian(p, z):
    h = lambda z: (jnp.tanh(jnp.tanh(z @ p["w1"]) @ p["w2"]) @ p["out"]).sum()
    j = np.kron([[0, 1], [-1, 0]], np.eye(4)).astype("f")
    return j @ jax.grad(h)(z)


@attack(X, A(4, 5), w="io 7 12", out="-? 12 5")
def gradients_of_each_example(p, x, y):
    loss = lambda p, x, y: ((head(p, x @ p["w"]) - y) ** 2).sum()
    g = jax.vmap(jax.grad(loss), (None, 0, 0))(p, x, y)
    return jax.tree.map(lambda g: g.mean(0), g)


@attack(X, w="io? 7 12", out="-? 12 5")
def guided_by_the_gradient(p, x):
    f = lambda x: head(p, jnp.tanh(x @ p["w"]))
    return f(x - 0.1 * jax.grad(lambda x: (f(x) ** 2).sum())(x))


@attack(X, enc="io 7 12", dec="io|-? 12 7", back="- 7 12")
def cycle_of_two_maps(p, x):
    y = relu(x @ p["enc"]) @ p["dec"]
    return ((relu(y @ p["enc"]) @ p["dec"] - x) ** 2).sum(), y @ p["back"]


@attack(T(4, 9), emb="- 20 7", w="io 7 12", out="-? 12 20", back="io|-? 20 7")
def conditioned_on_its_own_guess(p, t):
    f = lambda x: relu(x @ p["w"]) @ p["out"]
    x = p["emb"][t]
    return f(x + lax.stop_gradient(softmax(f(x))) @ p["back"])


# Weights that meet other things before the data.


@attack(X, **IO)
def broadcast_over_examples(p, x):
    w = jnp.broadcast_to(p["w"], (4, 7, 12))
    return head(p, jnp.einsum("bi,bio->bo", x, w))


@attack(X, ws="bio? 3 7 12", a="- 3", out="- 12 5")
def soup_of_weights(p, x):
    w = jnp.einsum("k,kio->io", softmax(p["a"]), p["ws"])
    return head(p, x @ w)


@attack(X, A(3), ws="bio? 3 7 12", out="- 12 5")
def soup_of_weights_by_an_input(p, x, a):
    return head(p, x @ jnp.einsum("k,kio->io", a, p["ws"]))


@attack(X, A(3), ws="bio? 3 7 12", out="- 12 5")
def soup_of_weights_by_hand(p, x, a):
    return head(p, x @ sum(a[k] * p["ws"][k] for k in range(3)))


@attack(X, s="- 7", w="io 7 12", out="- 12 5")
def scale_first_in_one_einsum(p, x):
    path = [(1, 2), (0, 1)]
    return head(p, jnp.einsum("bi,i,io->bo", x, p["s"], p["w"], optimize=path))


@attack(SEQ, s="- 9 7", w="io 7 12", out="- 12 5")
def scale_of_each_position(p, x):
    return head(p, jnp.einsum("bti,ti,io->bto", x, p["s"], p["w"]))


@attack(SEQ, s="-? 9 7", w="io 7 12", out="- 12 5")
def scale_of_each_position_meets_the_weight(p, x):
    path = [(1, 2), (0, 1)]
    return head(p, jnp.einsum("bti,ti,io->bto", x, p["s"], p["w"], optimize=path))


@attack(X, A(7, 3), A(3, 12), r="io? 3 3", out="- 12 5")
def small_core_between_frozen_factors(p, x, a, b):
    return head(p, x @ (a @ p["r"] @ b))


@attack(X, A(7, 3), b="io 3 12", out="- 12 5")
def frozen_factor_first(p, x, a):
    return head(p, x @ (a @ p["b"]))


@attack(X, k="oi 12 7", v="io 12 8", out="- 8 5")
def tokens_as_parameters(p, x):
    s = x @ p["k"].T
    s = jax.nn.gelu(s * lax.rsqrt((s * s).mean(-1, keepdims=True)))
    return head(p, s @ p["v"])


@attack(X, **IO)
def frozen_signs_with_learned_size(p, x):
    sign = jnp.asarray(np.sign(np.random.default_rng(0).standard_normal((7, 12))))
    return head(p, x @ (sign * jax.nn.softplus(p["w"])))


@attack(X, s="io? 7 12", out="- 12 5")
def learned_mask_of_frozen_weights(p, x):
    w = np.random.default_rng(0).standard_normal((7, 12)).astype("f")
    least = jnp.sort(jnp.abs(p["s"]).ravel())[42]
    mask = (jnp.abs(p["s"]) > least) + p["s"] - lax.stop_gradient(p["s"])
    return head(p, x @ (w * mask))


@attack(X, **IO)
def added_to_the_identity(p, x):
    return head(p, x @ (jnp.eye(7, 12) + 0.1 * p["w"]))


@attack(X, **SQUARE)
def a_power(p, x):
    return head(p, x @ jnp.linalg.matrix_power(p["w"], 3))


@attack(X, **SQUARE)
def beside_its_transpose(p, x):
    return relu(x @ jnp.concatenate([p["w"], p["w"].T], 1))[:, :7] @ p["out"]


@attack(X, w="io 7 6", out="- 12 5")
def beside_its_negative(p, x):
    return head(p, x @ jnp.concatenate([p["w"], -p["w"]], 1))


@attack(A(4, 4), **{"w": "io? 4 8", "out": "- 4 5"})
def read_as_another_shape(p, x):
    return head(p, jnp.pad(x, ((0, 0), (0, 4))) @ p["w"].reshape(8, 4))


@attack(X, w="-? 7 12", mid="io 7 9", out="- 9 5")
def outputs_summed_at_once(p, x):
    return head(p, jnp.tanh(jnp.einsum("bi,io->b", x, p["w"]))[:, None] * x @ p["mid"])


@attack(X, A(4, 6), w="ioo|iio? 7 6 4", out="- 24 5")
def one_weight_for_two_inputs(p, x, y):
    a = jnp.einsum("bi,ijk->bjk", x, p["w"])
    return head(p, (a * y[:, :, None]).reshape(4, 24))


@attack(SEQ, X, w="io|oi? 7 12", out="- 12 5")
def dense_and_convolutional(p, x, y):
    h = conv(x, p["w"][None], ("NWC", "WIO", "NWC"))
    return head(p, h.mean(1) + y @ p["w"])


@attack(A(2, 8, 8, 3), w="iiio 3 3 3 11", out="- 11 5")
def masked_convolution(p, x):
    mask = np.ones((3, 3, 1, 1), "f")
    mask[1, 2:] = mask[2] = 0
    return head(p, conv(x, p["w"] * mask).mean((1, 2)))


@attack(A(2, 8, 8, 6), w="-? 3 3 1 12", point="io 12 9", out="- 9 5")
def depthwise_with_two_outputs(p, x):
    h = conv(x, p["w"], feature_group_count=6)
    return head(p, (h @ p["point"]).mean((1, 2)))


@attack(A(2, 9, 6, 3), w="ibo|iob? 3 6 2", out="- 12 5")
def depthwise_over_windows(p, x):
    h = jnp.einsum("btck,kcm->btcm", x, p["w"])
    return head(p, h.reshape(2, 9, 12))


@attack(A(9, 7), A(9, 9), w="iio|bio? 3 7 12", out="- 12 5")
def chebyshev_convolution(p, x, lap):
    t = [x, lap @ x]
    t.append(2 * lap @ t[1] - x)
    return head(p, jnp.einsum("kni,kio->no", jnp.stack(t), p["w"]))


@attack(X, **IO)
def integers_in_between(p, x):
    s, r = jnp.abs(p["w"]).max() / 127, jnp.abs(x).max() / 127
    w, x = jnp.round(p["w"] / s).astype(jnp.int8), jnp.round(x / r).astype(jnp.int8)
    y = lax.dot_general(
        x, w, (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32
    )
    return head(p, y * (s * r))


@attack(X, z="-? 9 7", out="- 9 5")
def inducing_points_of_a_process(p, x):
    k = lambda a, b: jnp.exp(-((a[:, None] - b) ** 2).sum(-1))
    l = jnp.linalg.cholesky(k(p["z"], p["z"]) + jnp.eye(9))
    return jax.scipy.linalg.solve_triangular(l, k(p["z"], x), lower=True).T @ p["out"]


@attack(X, w="io|io/(5,5,2)? 7 12", out="- 5 4")
def spline_flow(p, x):
    w, h, _ = jnp.split(x @ p["w"], (5, 10), -1)
    return head(p, jnp.cumsum(softmax(w), -1) * softmax(h))


@attack(SEQ, a="bio 2 7 7", b="bbio 2 3 7 7", out="- 7 5")
def scan_of_a_scan_and_a_layer(p, x):
    inner = lambda x, w: (x + jnp.tanh(x @ w), None)

    def outer(x, w):
        x = lax.scan(inner, x, w[1])[0]
        return jnp.tanh(x @ w[0]), None

    return head(p, lax.scan(outer, x, (p["a"], p["b"]))[0])


@attack(X, A(12), T(), **IO)
def weights_slowly_turned_on(p, x, m, step):
    ramp = jnp.minimum(step / 100, 1)
    return head(p, x @ (ramp * p["w"] + (1 - ramp) * lax.stop_gradient(p["w"])) * m)
