"""Rare operations and roundabout programs in tiny models."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from _uses.battery import A, T, small
from jax import lax

odd = functools.partial(small, "odd")
KEY = jax.eval_shape(lambda: jax.random.key(0))
X, SEQ = A(4, 7), A(4, 9, 7)
relu, softmax = jax.nn.relu, jax.nn.softmax
IO = {"w": "io 7 12", "out": "- 12 5"}
MAYBE = {"w": "io? 7 12", "out": "- 12 5"}
PERM = np.random.default_rng(0).permutation(7)


def head(p, h):
    return relu(h) @ p["out"]


# Noise, indices and masks before a product.


@odd(X, KEY, mu="-? 9 7", w="io? 7 12", v="io 7 12", out="- 12 5")
def learned_prior(p, x, key):
    z = p["mu"] + jax.random.normal(key, (9, 7))
    return head(p, x @ p["v"] + (z @ p["w"]).mean(0))


@odd(X, KEY, **MAYBE)
def rows_permuted_at_random(p, x, key):
    return head(p, x @ p["w"][jax.random.permutation(key, 7)])


@odd(X, KEY, **IO)
def rounded_at_random(p, x, key):
    u = jax.random.uniform(key, (7, 12))
    q = jnp.floor(p["w"] * 16 + u) / 16
    return head(p, x @ (p["w"] + lax.stop_gradient(q - p["w"])))


@odd(X, KEY, **IO)
def noise_on_the_data(p, x, key):
    return head(p, (x + jax.random.normal(key, x.shape)) @ p["w"])


@odd(X, KEY, **IO)
def inputs_dropped_with_rescaling(p, x, key):
    keep = jax.random.bernoulli(key, 0.8, (7, 1))
    return head(p, x @ (p["w"] * keep / 0.8))


@odd(X, KEY, **MAYBE)
def product_with_random_features(p, x, key):
    r = jax.random.normal(key, (7, 7))
    return head(p, jnp.cos(x @ r) @ p["w"])


@odd(X, u="io? 7 3", v="io? 3 12", out="- 12 5")
def permuted_factor(p, x):
    return head(p, x @ (p["u"][PERM] @ p["v"]))


@odd(X, w="io 7 12", u="io? 7 3", v="io? 3 12", out="- 12 5")
def permuted_factor_beside_a_matrix(p, x):
    return head(p, x @ (p["w"] + p["u"][PERM] @ p["v"]))


@odd(X, w="io 7 7", out="- 7 5")
def diagonal_set_to_zero(p, x):
    i = np.arange(7)
    return head(p, x @ p["w"].at[i, i].set(0.0))


@odd(X, **MAYBE)
def rows_set_to_zero(p, x):
    return head(p, x @ p["w"].at[np.array([1, 3])].set(0.0))


@odd(X, T(2), **MAYBE)
def rows_set_to_zero_by_data(p, x, i):
    return head(p, x @ p["w"].at[i].set(0.0))


@odd(X, T(4), a="io 7 12", b="io 7 12", out="- 12 5")
def mapped_branches(p, x, i):
    f = lambda x, i: lax.cond(i > 0, lambda: x @ p["a"], lambda: x @ p["b"])
    return head(p, jax.vmap(f)(x, i))


@odd(X, T(4), a="io 7 12", b="io 7 12", c="io 7 12", out="- 12 5")
def mapped_switch(p, x, i):
    fs = [lambda x, n=n: x @ p[n] for n in "abc"]
    return head(p, jax.vmap(lambda x, i: lax.switch(i, fs, x))(x, i))


@odd(X, **IO)
def depends_on_the_platform(p, x):
    f = lambda x: x @ p["w"]
    return head(p, lax.platform_dependent(x, cpu=f, default=lambda x: 1 * f(x)))


@odd(X, T(4), T(4), a="io 7 12", b="io 7 12", out="- 12 5")
def outputs_selected(p, x, i, j):
    y = jnp.select([(i > 0)[:, None], (j > 0)[:, None]], [x @ p["a"], x @ p["b"]], 0.0)
    return head(p, y)


# Orders that do not route.


@odd(SEQ, w="io? 7 12", v="io 12 8", out="- 8 5")
def tokens_pruned_by_norm(p, x):
    h = x @ p["w"]
    i = lax.top_k((h * h).sum(-1), 3)[1]
    return head(p, jnp.take_along_axis(h, i[..., None], 1) @ p["v"])


@odd(A(9, 7), w="io 7 12", e="io 24 8", out="- 8 5")
def nearest_neighbours_of_features(p, x):
    h = x @ p["w"]
    d = ((h[:, None] - h) ** 2).sum(-1)
    near = h[lax.top_k(-d, 3)[1]]
    pair = jnp.concatenate([jnp.broadcast_to(h[:, None], near.shape), near], -1)
    return head(p, relu(pair @ p["e"]).max(1))


@odd(X, T(4), w="io 7 12", out="- 12 5")
def hardest_examples(p, x, y):
    z = jax.nn.log_softmax(head(p, x @ p["w"]))
    each = -jnp.take_along_axis(z, y[:, None], 1)[:, 0]
    return lax.top_k(each, 2)[0].mean()


@odd(X, cls="-? 7 6", emb="- 6 8", w="io 8 12", out="- 12 5")
def rows_of_the_best_class(p, x):
    z = x @ p["cls"]
    return head(p, p["emb"][jnp.argmax(z, -1)] @ p["w"]), jax.nn.log_softmax(z)


@odd(SEQ, w="io 7 12", v="io? 12 8", out="- 8 5")
def most_active_step(p, x):
    h = x @ p["w"]
    at = jnp.argmax(h.sum(-1), 1)
    return head(p, h[jnp.arange(4), at] @ p["v"])


@odd(X, w="io 7 12", v="io 12 9", out="- 9 5")
def clipped_to_a_quantile_of_the_batch(p, x):
    h = x @ p["w"]
    return head(p, jnp.minimum(h, jnp.quantile(jnp.abs(h), 0.9)) @ p["v"])


@odd(X, w="io|-? 7 12", v="io|-? 12 9", out="- 9 5")
def competition_of_units(p, x):
    h = relu(x @ p["w"])
    return head(p, (h * jax.nn.one_hot(jnp.argmax(h, -1), 12)) @ p["v"])


@odd(SEQ, w="io? 7 12", v="io 12 9", out="- 9 5")
def softmax_pool_of_each_channel(p, x):
    h = x @ p["w"]
    return head(p, (h * softmax(h, 1)).sum(1) @ p["v"])


@odd(SEQ, gate="io 7 12", w="io 7 12", out="- 12 5")
def softmax_over_time_of_gates(p, x):
    g = softmax(x @ p["gate"], 1)
    return head(p, (g * (x @ p["w"])).sum(1))


# Stacks, ensembles and recurrences.


@odd(SEQ, wx="bio 3 7 6", wh="bio 3 6 6", out="- 3 6 5")
def ensemble_of_recurrences(p, x):
    def one(wx, wh, out):
        step = lambda h, x: (jnp.tanh(x @ wx + h @ wh), None)
        return lax.scan(step, jnp.zeros((4, 6)), jnp.moveaxis(x, 1, 0))[0] @ out

    return jax.vmap(one)(p["wx"], p["wh"], p["out"]).mean(0)


@odd(X, ws="bbio 3 2 7 7", out="- 3 7 5")
def ensemble_of_scans(p, x):
    step = lambda x, w: (jnp.tanh(x @ w), None)
    one = lambda ws, out: lax.scan(step, x, ws)[0] @ out
    return jax.vmap(one)(p["ws"], p["out"])


@odd(X, ws="bbio 2 3 7 7", out="- 3 7 5")
def scan_of_an_ensemble(p, x):
    x = jnp.broadcast_to(x, (3, 4, 7))
    step = lambda x, w: (jnp.tanh(jnp.einsum("mbi,mio->mbo", x, w)), None)
    return jnp.einsum("mbi,mio->mbo", lax.scan(step, x, p["ws"])[0], p["out"])


@odd(SEQ, a="-? 3 12", w="io 7 12", v="io 12 12", out="- 12 5")
def one_vector_of_each_layer(p, x):
    h = x @ p["w"]
    for a in p["a"]:
        s = softmax(jnp.tanh(h @ p["v"]) @ a)
        h = h + s[..., None] * h
    return head(p, h)


@odd(X, ws="bio 3 7 7", a="-? 3 7", out="- 7 5")
def one_gate_of_each_scanned_layer(p, x):
    def step(x, wa):
        w, a = wa
        return x + jax.nn.sigmoid(x @ a)[:, None] * jnp.tanh(x @ w), None

    return head(p, lax.scan(step, x, (p["ws"], p["a"]))[0])


@odd(X, ws="bio 3 7 7", g="- 3 7", out="- 7 5")
def norms_of_unrolled_layers(p, x):
    for i in range(3):
        y = x * lax.rsqrt((x * x).mean(-1, keepdims=True)) * p["g"][i]
        x = x + jnp.tanh(y @ p["ws"][i])
    return head(p, x)


@odd(X, ws="bio 4 7 7", out="- 7 5")
def odd_and_even_layers(p, x):
    for w in p["ws"][::2]:
        x = jnp.tanh(x @ w)
    for w in p["ws"][1::2]:
        x = relu(x @ w)
    return head(p, x)


@odd(X, ws="bio 4 7 7", out="- 7 5")
def layers_from_the_last(p, x):
    for i in (-1, -2, 1, 0):
        x = jnp.tanh(x @ p["ws"][i])
    return head(p, x)


@odd(X, ws="bio 5 7 7", out="- 7 5")
def first_layer_apart_from_a_scan(p, x):
    x = jnp.tanh(x @ p["ws"][0])
    return head(p, lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, p["ws"][1:])[0])


@odd(X, a="bio 2 7 7", b="bio 2 7 7", out="- 7 5")
def stacks_joined_and_scanned(p, x):
    ws = jnp.concatenate([p["a"], p["b"]])
    return head(p, lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, ws)[0])


@odd(X, w0="io 7 7", w1="io 7 7", w2="io 7 7", out="- 7 5")
def layers_stacked_and_scanned(p, x):
    ws = jnp.stack([p["w0"], p["w1"], p["w2"]])
    return head(p, lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, ws)[0])


@odd(X, wbig="io|io/3? 7 21", out="- 7 5")
def columns_as_layers(p, x):
    ws = p["wbig"].reshape(7, 3, 7)
    for i in range(3):
        x = jnp.tanh(x @ ws[:, i])
    return head(p, x)


@odd(X, dense="io? 20 6", out="- 19 5")
def dense_connections_in_one_weight(p, x):
    x = jnp.concatenate([x, jnp.tanh(x @ p["dense"][:7])], -1)
    x = jnp.concatenate([x, jnp.tanh(x @ p["dense"][7:])], -1)
    return head(p, x)


@odd(X, ws="bio 3 7 7", out="- 7 5")
def remat_of_a_scan_in_a_loop(p, x):
    body = jax.checkpoint(lambda x, w: (x + jnp.tanh(x @ w), None))
    scan = lambda _, x: lax.scan(body, x, p["ws"], unroll=2)[0]
    return head(p, lax.fori_loop(0, 2, scan, x))


@odd(X, ws="bio 3 7 7", alpha="- 3", out="- 7 5")
def weighted_sum_of_layers(p, x):
    def step(x, w):
        x = jnp.tanh(x @ w)
        return x, x

    ys = lax.scan(step, x, p["ws"])[1]
    return head(p, jnp.einsum("l,lbd->bd", softmax(p["alpha"]), ys))


@odd(X, ws="bio? 3 7 12", out="- 12 5")
def layers_mapped_over_one_input(p, x):
    return head(p, lax.map(lambda w: jnp.tanh(x @ w), p["ws"]).sum(0))


# Several sides.


@odd(A(4, 3, 7), a="oi 6 3", b="io 7 8", out="- 48 5")
def product_from_both_sides(p, x):
    return head(p, (p["a"] @ x @ p["b"]).reshape(4, 48))


@odd(X, A(4, 6), w="io 42 12", out="- 12 5")
def fusion_of_two_inputs(p, x, y):
    z = (x[:, :, None] * y[:, None]).reshape(4, 42)
    return head(p, z @ p["w"])


@odd(T(4, 9), w="iio|io|-? 9 4 12", out="- 12 5")
def one_hot_sequence_flat(p, t):
    x = jax.nn.one_hot(t, 4).reshape(4, 36)
    return head(p, x @ p["w"].reshape(36, 12))


@odd(T(4, 9), w="iio 3 4 12", out="- 12 5")
def convolution_of_one_hot(p, t):
    y = lax.conv_general_dilated(
        jax.nn.one_hot(t, 4),
        p["w"],
        (1,),
        "SAME",
        dimension_numbers=("NWC", "WIO", "NWC"),
    )
    return head(p, y.max(1))


@odd(SEQ, T(4), w="io 7 12", v="io 12 8", out="- 8 5")
def last_step_by_one_hot(p, x, n):
    h = jnp.einsum("bt,btd->bd", jax.nn.one_hot(n - 1, 9), x @ p["w"])
    return head(p, h @ p["v"])


@odd(A(4, 7, 7), w="io 7 12", out="- 12 5")
def trace_of_a_product(p, x):
    return head(p, jnp.einsum("bij,jo,bio->bo", x, p["w"], x @ p["w"]))


@odd(X, a="io 7 6", b="io 7 8", w="iio? 6 8 12", out="- 12 5")
def low_rank_bilinear_pooling(p, x):
    y = jnp.einsum("bi,bj,ijo->bo", x @ p["a"], x @ p["b"], p["w"])
    return head(p, y)


# Rare operations.


@odd(A(7, 7), X, **IO)
def solved_by_data(p, a, x):
    return head(p, x @ jnp.linalg.solve(a, p["w"]))


@odd(A(7, 7), X, **MAYBE)
def basis_of_data(p, a, x):
    u = jnp.linalg.eigh(a @ a.T)[1]
    return head(p, x @ u @ p["w"])


@odd(X, **MAYBE)
def weight_solved_by_a_constant(p, x):
    a = jnp.eye(7) + jnp.ones((7, 7)) / 7
    return head(p, x @ jax.scipy.linalg.solve(a, p["w"]))


@odd(A(2, 8, 8, 3), w="iiio 3 3 3 11", out="- 11 5")
def pooled(p, x):
    y = lax.conv_general_dilated(
        x, p["w"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    y = lax.reduce_window(y, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return head(p, y.mean((1, 2)))


@odd(A(2, 8, 8, 3), w1="iiio? 3 3 3 11", w2="iiio? 3 3 11 6", out="-? 6 5")
def saliency_through_pooling(p, x):
    def f(x):
        for w in (p["w1"], p["w2"]):
            x = relu(lax.conv_general_dilated(
                x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            ))  # fmt: skip
            x = lax.reduce_window(
                x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"
            )
        return (x.mean((1, 2)) @ p["out"]).sum()

    return jnp.abs(jax.grad(f)(x)), f(x)


@odd(X, **MAYBE)
def weight_pooled(p, x):
    w = lax.reduce_window(p["w"], 0.0, lax.add, (1, 3), (1, 1), "SAME")
    return head(p, x @ w)


@odd(X, **MAYBE)
def weight_sorted(p, x):
    return head(p, x @ jnp.sort(p["w"], 1))


@odd(X, **MAYBE)
def largest_entries_of_the_weight(p, x):
    least = lax.top_k(jnp.abs(p["w"]), 4)[0][:, -1:]
    return head(p, x @ jnp.where(jnp.abs(p["w"]) >= least, p["w"], 0))


@odd(X, **IO)
def two_of_four(p, x):
    w = jnp.abs(p["w"]).reshape(7, 3, 4)
    mask = (w >= jnp.sort(w, -1)[..., 2:3]).reshape(7, 12)
    return head(p, x @ (p["w"] * lax.stop_gradient(mask)))


@odd(X, **IO)
def clamped_by_its_norms(p, x):
    limit = jnp.abs(p["w"]).mean(0)
    return head(p, x @ jnp.clip(p["w"], -limit, limit))


@odd(X, w="io 7 12", v="io 12 9", out="- 9 5")
def bounded_activations(p, x):
    return head(p, lax.clamp(-1.0, x @ p["w"], 1.0) @ p["v"])


@odd(SEQ, w="io 7 12", out="- 12 5")
def reversed_running_sum(p, x):
    return head(p, lax.cumsum(x @ p["w"], 1, reverse=True))


@odd(SEQ, w="io 7 12", out="- 12 5")
def frequencies_of_the_outputs(p, x):
    return head(p, jnp.abs(jnp.fft.fft(x @ p["w"], axis=1)))


@odd(SEQ, w="io 7 12", v="io 12 8", out="- 8 5")
def mixed_by_a_transform(p, x):
    h = x @ p["w"]
    return head(p, jnp.fft.fft2(h).real @ p["v"])


@odd(X, w="io 7 12", v="io 12 8", out="- 8 5")
def hadamard_of_the_outputs(p, x):
    h = x @ p["w"]
    m = np.kron(np.eye(6), [[1, 1], [1, -1]]).astype("f")
    return head(p, (h @ m) @ p["v"])


@odd(X, w="io 7 12", v="io 12 8", out="- 8 5")
def rotated_by_a_constant_before_and_after(p, x):
    r = np.linalg.qr(np.random.default_rng(0).standard_normal((12, 12)))[0].astype("f")
    return head(p, (relu(x @ p["w"]) @ r) @ (r.T @ p["v"]))


@odd(X, w="io 7 12", v="io? 12 8", out="- 8 5")
def rotated_in_the_weight(p, x):
    r = np.linalg.qr(np.random.default_rng(0).standard_normal((12, 12)))[0].astype("f")
    return head(p, relu(x @ p["w"]) @ (r @ p["v"]))


@odd(X, w="io 7 12", t="-? 12 9", out="- 12 5")
def learned_lookup_of_quantized_outputs(p, x):
    i = jnp.clip(jnp.round(x @ p["w"]), 0, 8).astype(int)
    return head(p, p["t"][jnp.arange(12), i])


@odd(X, **IO)
def integers_unpacked(p, x):
    y = lax.bitcast_convert_type(lax.bitcast_convert_type(p["w"], jnp.int32), x.dtype)
    return head(p, x @ y)


@odd(X, **IO)
def host_callback_on_outputs(p, x):
    h = x @ p["w"]
    jax.debug.callback(lambda h: None, h)  # noqa: ARG005
    return head(p, h)


@odd(X, w="io 7 12", v="io 12 7", out="- 7 5")
def halted_by_a_learned_layer(p, x):
    step = lambda x: x + jnp.tanh(x @ p["w"]) @ p["v"]
    go = lambda x: (x @ p["w"]).mean() < 1
    return head(p, lax.while_loop(go, step, x))


@odd(X, w="io 7 12", halt="? 7 2", out="- 12 5")
def halted_by_a_layer_of_its_own(p, x):
    go = lambda x: (x @ p["halt"]).max() < 1
    return head(p, lax.while_loop(go, lambda x: x * 1.1, x) @ p["w"])


@odd(X, w="io 7 12", idle="? 5 6", out="- 12 5")
def parameter_without_use(p, x):
    return head(p, x @ p["w"]) + 0 * p["idle"].sum()


@odd(X, w="io 7 12", out="- 12 5")
def empty_loop(p, x):
    x = lax.scan(lambda x, _: (x @ p["w"] @ p["w"].T, None), x, None, 0)[0]
    return head(p, x @ p["w"])


@odd(X, w="io? 7 12", out="- 12 5")
def under_a_named_transpose(p, x):
    with jax.named_scope("transpose(jvp(x))"):
        h = x @ p["w"]
    return head(p, h)


@odd(X, w="io 7 12", out="-|io? 12 5")
def predictions_fed_back(p, x):
    def step(x, _):
        y = head(p, x @ p["w"])
        return jnp.concatenate([x[:, 5:], y], -1), y

    return lax.scan(step, x, None, 3)[1]
