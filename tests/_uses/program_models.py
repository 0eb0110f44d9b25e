"""Programs with loops, derivatives, several nets and devices, in tiny models."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from _uses.battery import A, T, small
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec as P

program = functools.partial(small, "program")
KEY = jax.eval_shape(lambda: jax.random.key(0))
X, SEQ = A(4, 7), A(4, 9, 7)
relu = jax.nn.relu
IO = {"w": "io 7 12", "out": "- 12 5"}


def head(p, h):
    return relu(h) @ p["out"]


# Loops.


@program(X, inn="io 7 8", ws="bio 3 8 8", out="- 8 5")
def layers_by_an_index(p, x):
    step = lambda i, x: x + jnp.tanh(x @ p["ws"][i])
    return head(p, lax.fori_loop(0, 3, step, x @ p["inn"]))


@program(X, ws="bbio 2 3 7 7", out="- 7 5")
def scan_in_a_scan(p, x):
    inner = lambda x, w: (x + jnp.tanh(x @ w), None)
    outer = lambda x, ws: (lax.scan(inner, x, ws)[0], None)
    return head(p, lax.scan(outer, x, p["ws"])[0])


@program(X, a="bio 3 7 8", b="bio 3 8 7", out="- 7 5")
def scan_in_reverse(p, x):
    step = lambda x, w: (x + relu(x @ w[0]) @ w[1], None)
    return head(p, lax.scan(step, x, (p["a"], p["b"]), reverse=True)[0])


@program(X, ws="ibo 7 3 7", out="- 7 5")
def scan_over_the_middle_axis(p, x):
    step = lambda x, w: (x + jnp.tanh(x @ w), None)
    return head(p, lax.scan(step, x, jnp.moveaxis(p["ws"], 1, 0))[0])


@program(X, ws="bio 6 7 7", out="- 7 5")
def scan_over_pairs_of_layers(p, x):
    def step(x, w):
        return jnp.tanh(jnp.tanh(x @ w[0]) @ w[1]), None

    return head(p, lax.scan(step, x, p["ws"].reshape(3, 2, 7, 7))[0])


@program(X, w="io 7 7", out="- 7 5")
def one_layer_at_all_depths(p, x):
    for _ in range(3):
        x = x + jnp.tanh(x @ p["w"])
    return head(p, x)


@program(X, T(), ws="bio 3 7 7", out="- 7 5")
def layer_chosen_by_a_number(p, x, i):
    branches = [lambda x, k=k: jnp.tanh(x @ p["ws"][k]) for k in range(3)]
    return head(p, lax.switch(i, branches, x))


@program(X, T(), a="io 7 7", b="io 7 7", out="- 7 5")
def layer_skipped_by_a_number(p, x, i):
    x = lax.cond(i > 0, lambda x: x + jnp.tanh(x @ p["a"]), lambda x: x, x)
    return head(p, x @ p["b"])


@program(X, w="io 7 7", u="io 7 7", out="- 7 5")
def equilibrium_by_while(p, x):
    f = lambda z: jnp.tanh(z @ p["w"] + x @ p["u"])
    go = lambda s: (s[1] < 9) & (jnp.abs(f(s[0]) - s[0]).max() > 1e-3)
    z, _ = lax.while_loop(go, lambda s: (f(s[0]), s[1] + 1), (jnp.zeros((4, 7)), 0))
    return head(p, f(z))


@program(X, w="io 7 7", u="io 7 7", out="- 7 5")
def equilibrium_by_implicit_derivative(p, x):
    f = lambda p, z: jnp.tanh(z @ p["w"] + x @ p["u"])

    @jax.custom_vjp
    def fixed(p):
        return lax.fori_loop(0, 5, lambda _, z: f(p, z), jnp.zeros((4, 7)))

    fixed.defvjp(lambda p: (fixed(p), p), lambda p, _: (p,))
    return head(p, fixed(p))


@program(X, w="io? 7 7", u="io 7 7", out="- 7 5")
def root_by_custom_root(p, x):
    f = lambda z: z - 0.1 * jnp.tanh(z @ p["w"]) - x @ p["u"]
    solve = lambda f, z: lax.fori_loop(0, 3, lambda _, z: z - f(z), z)
    tangent = lambda g, y: y / g(jnp.ones_like(y))
    return head(p, lax.custom_root(f, jnp.zeros((4, 7)), solve, tangent))


@program(X, w="io|oi? 7 7", out="- 7 5")
def linear_system_by_iteration(p, x):
    step = lambda y: y + 0.1 * y @ p["w"]
    y = jax.scipy.sparse.linalg.cg(step, x, maxiter=3)[0]
    return head(p, y)


@program(X, a="io 7 12", b="io 12 7", out="- 7 5")
def differential_equation_by_hand(p, x):
    f = lambda x: jnp.tanh(x @ p["a"]) @ p["b"]

    def step(_, x):
        k1 = f(x)
        k2 = f(x + 0.05 * k1)
        return x + 0.1 * k2

    return head(p, lax.fori_loop(0, 4, step, x))


@program(X, a="io 8 12", b="io 12 7", out="- 7 5")
def differential_equation_in_time(p, x):
    def step(x, t):
        z = jnp.concatenate([x, jnp.broadcast_to(t, (4, 1))], -1)
        return x + 0.1 * jnp.tanh(z @ p["a"]) @ p["b"], None

    return head(p, lax.scan(step, x, jnp.linspace(0, 1, 4))[0])


@program(X, a="io? 7 12", b="io? 12 7", out="- 7 5")
def differential_equation_by_odeint(p, x):
    from jax.experimental.ode import odeint

    f = lambda x, _, p: jnp.tanh(x @ p["a"]) @ p["b"]
    return head(p, odeint(f, x, jnp.linspace(0, 1, 3), p)[-1])


# Recurrent nets.


@program(SEQ, w="io/4 19 48", out="- 12 5")
def unrolled_lstm(p, x):
    h = c = jnp.zeros((4, 12))
    for t in range(9):
        z = jnp.concatenate([x[:, t], h], -1) @ p["w"]
        i, f, g, o = jnp.split(z, 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return head(p, h)


@program(SEQ, wx="io/3 7 36", wh="io/3 12 36", out="- 12 5")
def scanned_gru(p, x):
    def step(h, x):
        r, z, n = jnp.split(x @ p["wx"], 3, -1)
        a, b, c = jnp.split(h @ p["wh"], 3, -1)
        z = jax.nn.sigmoid(z + b)
        h = (1 - z) * jnp.tanh(n + jax.nn.sigmoid(r + a) * c) + z * h
        return h, h

    return head(p, lax.scan(step, jnp.zeros((4, 12)), jnp.moveaxis(x, 1, 0))[1])


@program(
    SEQ, fx="io 7 6", fh="io 6 6", bx="io 7 6", bh="io 6 6", wx="io 12 8", wh="io 8 8",
    out="- 8 5",
)  # fmt: skip
def both_directions_then_another(p, x):
    def rnn(x, wx, wh, **options):
        step = lambda h, x: (jnp.tanh(x @ wx + h @ wh),) * 2
        return lax.scan(step, jnp.zeros((4, wh.shape[0])), x, **options)[1]

    x = jnp.moveaxis(x, 1, 0)
    x = [rnn(x, p["fx"], p["fh"]), rnn(x, p["bx"], p["bh"], reverse=True)]
    return head(p, rnn(jnp.concatenate(x, -1), p["wx"], p["wh"])[-1])


@program(SEQ, wx="io 7 6", wh="io 6 6", peep="- 2 6", out="- 6 5")
def peepholes(p, x):
    def step(c, x):
        i = jax.nn.sigmoid(x @ p["wx"] + p["peep"][0] * c)
        c = i * jnp.tanh(c @ p["wh"]) + (1 - i) * c
        return c, jnp.tanh(c * p["peep"][1])

    return head(p, lax.scan(step, jnp.zeros((4, 6)), jnp.moveaxis(x, 1, 0))[1])


@program(SEQ, h0="- 2 6", wx="io 7 6", wh="bio 2 6 6", wy="io 6 6", out="- 6 5")
def learned_starts_of_two_cells(p, x):
    def step(hs, x):
        a = jnp.tanh(x @ p["wx"] + hs[0] @ p["wh"][0])
        b = jnp.tanh(a @ p["wy"] + hs[1] @ p["wh"][1])
        return (a, b), b

    start = tuple(jnp.broadcast_to(h, (4, 6)) for h in p["h0"])
    return head(p, lax.scan(step, start, jnp.moveaxis(x, 1, 0))[1])


@program(A(2, 5, 6, 6, 3), wx="iiio/2 3 3 3 8", wh="iiio/2 3 3 4 8", out="- 4 5")
def convolutional_recurrence(p, x):
    conv = lambda x, w: lax.conv_general_dilated(
        x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )

    def step(h, x):
        z, n = jnp.split(conv(x, p["wx"]) + conv(h, p["wh"]), 2, -1)
        h = jax.nn.sigmoid(z) * jnp.tanh(n) + h
        return h, None

    h, _ = lax.scan(step, jnp.zeros((2, 6, 6, 4)), jnp.moveaxis(x, 1, 0))
    return head(p, h.mean((1, 2)))


# Derivatives inside.


@program(X, w1="io? 7 12", w2="io? 12 9", out="-? 9 2")
def energy_and_its_gradient(p, x):
    e = lambda x: (jnp.tanh(jnp.tanh(x @ p["w1"]) @ p["w2"]) @ p["out"]).sum()
    return e(x), jax.grad(e)(x)


@program(X, w1="io? 7 12", w2="io? 12 9", out="-? 9 2")
def forces_alone(p, x):
    e = lambda x: (jnp.tanh(jnp.tanh(x @ p["w1"]) @ p["w2"]) @ p["out"]).sum()
    return -jax.grad(e)(x)


@program(X, A(4, 7), w1="io 7 12", w2="io 12 9", out="-? 9 7")
def score_matching_by_jvp(p, x, v):
    s = lambda x: jnp.tanh(jnp.tanh(x @ p["w1"]) @ p["w2"]) @ p["out"]
    s, ds = jax.jvp(s, (x,), (v,))
    return (v * ds).sum() + 0.5 * (s**2).sum()


@program(X, A(4, 7), w1="io? 7 12", w2="io? 12 9", out="-? 9 7")
def score_matching_by_vjp(p, x, v):
    s = lambda x: jnp.tanh(jnp.tanh(x @ p["w1"]) @ p["w2"]) @ p["out"]
    y, f = jax.vjp(s, x)
    return (v * f(v)[0]).sum() + 0.5 * (y**2).sum()


@program(X, A(4, 7), w1="io? 7 12", w2="io? 12 9", out="-? 9 2")
def gradient_penalty(p, x, y):
    d = lambda x: jax.nn.silu(jax.nn.silu(x @ p["w1"]) @ p["w2"]) @ p["out"]
    g = jax.grad(lambda x: d(x).sum())(0.3 * x + 0.7 * y)
    return d(x).mean() - d(y).mean() + ((jnp.linalg.norm(g, axis=-1) - 1) ** 2).mean()


@program(X, w1="io? 7 12", w2="io? 12 9", out="-? 9 2")
def laplacian_by_hessian(p, x):
    u = lambda x: (jnp.sin(jnp.sin(x @ p["w1"]) @ p["w2"]) @ p["out"])[0]
    return jax.vmap(lambda x: jnp.trace(jax.hessian(u)(x)))(x)


@program(X, w1="io? 7 12", w2="io? 12 7", out="- 7 5")
def jacobian_of_a_flow(p, x):
    f = lambda x: x + jnp.tanh(x @ p["w1"]) @ p["w2"]
    j = jax.vmap(jax.jacfwd(f))(x)
    return head(p, f(x)), jnp.linalg.slogdet(j)[1]


@program(X, A(4, 5), w="io? 7 12", out="-? 12 5")
def meta_learning_unrolled(p, x, y):
    loss = lambda p: ((head(p, jnp.tanh(x @ p["w"])) - y) ** 2).mean()
    for _ in range(2):
        p = jax.tree.map(lambda w, g: w - 0.1 * g, p, jax.grad(loss)(p))
    return loss(p)


@program(X, A(4, 5), w="io 7 12", out="-? 12 5")
def head_adapts_in_the_loss(p, x, y):
    h = jnp.tanh(x @ p["w"])
    loss = lambda out: ((h @ out - y) ** 2).mean()
    return loss(p["out"] - 0.1 * jax.grad(loss)(p["out"]))


@program(X, A(4, 5), w="io 7 12", out="- 12 5")
def gradient_of_the_parameters_is_the_result(p, x, y):
    loss = lambda p: ((head(p, x @ p["w"]) - y) ** 2).mean()
    return jax.value_and_grad(loss)(p)


@program(X, w="io|oi? 7 12", mid="io 7 9", out="- 9 5")
def transposed_linear_map(p, x):
    f = lambda x: x @ p["w"]
    y = jax.nn.tanh(f(x))
    (z,) = jax.linear_transpose(f, x)(y)
    return head(p, z @ p["mid"])


@program(A(2, 6, 6, 12), w="iioi? 3 3 7 12", mid="io 7 9", out="- 9 5")
def transposed_convolution_by_vjp(p, y):
    f = lambda x: lax.conv_general_dilated(
        x, p["w"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    (z,) = jax.vjp(f, jnp.zeros((2, 6, 6, 7)))[1](y)
    return head(p, z @ p["mid"])


@program(SEQ, w="io|oi? 7 12", out="- 7 5")
def descent_of_an_energy(p, x):
    e = lambda x: -jax.nn.logsumexp(x @ p["w"], -1).sum() + 0.5 * (x**2).sum()
    for _ in range(2):
        x = x - 0.1 * jax.grad(e)(x)
    return head(p, x)


# Losses.


@program(X, w="io 7 12", out="- 12 5")
def orthogonality_first(p, x):
    penalty = ((p["w"] @ p["w"].T - jnp.eye(7)) ** 2).sum()
    return head(p, x @ p["w"]).sum() + penalty


@program(X, w="io 7 12", out="- 12 5")
def orthogonality_afterwards(p, x):
    y = head(p, x @ p["w"]).sum()
    return y + ((p["w"].T @ p["w"] - jnp.eye(12)) ** 2).sum()


@program(X, w="io 7 12", out="- 12 5")
def group_lasso(p, x):
    penalty = jnp.linalg.norm(p["w"], axis=1).sum() + jnp.abs(p["out"]).sum()
    return head(p, x @ p["w"]).sum() + penalty


@program(X, w="io? 7 12", out="-? 12 5")
def path_norm(p, x):
    path = jnp.ones(7) @ jnp.abs(p["w"]) @ jnp.abs(p["out"])
    return head(p, x @ p["w"]).sum() + path.sum()


@program(X, w="io? 7 12", out="- 12 5")
def nuclear_norm(p, x):
    s = jnp.linalg.svd(p["w"], compute_uv=False)
    return head(p, x @ p["w"]).sum() + s.sum()


@program(X, A(7, 12), w="io 7 12", out="- 12 5")
def pulled_to_old_weights(p, x, old):
    return head(p, x @ p["w"]).sum() + ((p["w"] - old) ** 2).sum()


@program(X, A(7, 12), w="io 7 12", out="- 12 5")
def elastic_weights(p, x, fisher):
    penalty = (fisher * p["w"] ** 2).sum()
    return penalty + head(p, x @ p["w"]).sum()


@program(X, KEY, w="io 7 12", rho="io|-? 7 12", out="- 12 5")
def local_reparametrization(p, x, key):
    var = x**2 @ jax.nn.softplus(p["rho"]) ** 2
    return head(p, x @ p["w"] + jnp.sqrt(var) * jax.random.normal(key, (4, 12)))


@program(X, w="io 7 12", lv="-? 7 12", out="- 12 5")
def penalty_of_variances(p, x):
    kl = (jnp.exp(p["lv"]) + p["w"] ** 2 - p["lv"]).sum()
    return head(p, x @ p["w"]).sum() + kl


@program(A(4, 6), A(4, 7), g1="io 6 9", g2="io? 9 7", d1="io 7 12", d2="- 12 2")
def two_adversaries(p, z, x):
    fake = jnp.tanh(z @ p["g1"]) @ p["g2"]
    d = lambda x: relu(x @ p["d1"]) @ p["d2"]
    return jax.nn.softplus(d(fake)).mean() + jax.nn.softplus(-d(x)).mean()


@program(X, w="io 7 12", cls="- 12 5", dom="io 12 9", out="- 9 2")
def reversed_gradient(p, x):
    @jax.custom_vjp
    def turn(x):
        return x

    turn.defvjp(lambda x: (x, None), lambda _, g: (-g,))
    h = relu(x @ p["w"])
    return h @ p["cls"], head(p, turn(h) @ p["dom"])


@program(
    X, X, w="io 7 12", proj="io? 12 8", pred="-|io? 8 8", ew="io 7 12",
    eproj="-|io? 12 8",
)  # fmt: skip
def student_and_slow_teacher(p, x, y):
    z = relu(x @ p["w"]) @ p["proj"] @ p["pred"]
    t = lax.stop_gradient(relu(y @ p["ew"]) @ p["eproj"])
    return ((z - t) ** 2).sum()


@program(X, A(4, 5), w="io 7 12", v="- 12 5", act="io 12 9", out="- 9 5")
def critic_with_a_target(p, x, r):
    h = relu(x @ p["w"])
    q = h @ p["v"]
    target = lax.stop_gradient(r[:, 0] + q.max(-1))
    return ((q[:, 0] - target) ** 2).mean(), head(p, h @ p["act"])


@program(X, w="io|oi? 7 12", v="io|oi? 12 9")
def tied_autoencoder(p, x):
    h = jnp.tanh(x @ p["w"])
    z = jnp.tanh(h @ p["v"])
    return jnp.tanh(z @ p["v"].T) @ p["w"].T


@program(X, w="io|oi? 7 12")
def restricted_boltzmann_machine(p, x):
    h = jax.nn.sigmoid(x @ p["w"])
    v = jax.nn.sigmoid(h @ p["w"].T)
    free = lambda v: -jax.nn.softplus(v @ p["w"]).sum()
    return free(x) - free(lax.stop_gradient(v))


# Tokens and their scores.


@program(T(4, 9), T(4, 9), emb="- 20 7", w="io 7 12", back="io 12 7")
def tied_scores_in_chunks(p, t, y):
    h = relu(p["emb"][t] @ p["w"]) @ p["back"]

    def step(z, rows):
        return jnp.logaddexp(z, jax.nn.logsumexp(h @ rows.T, -1)), None

    chunks = p["emb"].reshape(4, 5, 7)
    z, _ = lax.scan(step, jnp.full((4, 9), -1e9), chunks)
    return z - (h * p["emb"][y]).sum(-1)


@program(T(4, 9), T(4, 9), emb="- 20 7", w="io 7 12", out="- 12 20")
def scores_in_chunks_of_tokens(p, t, y):
    h = relu(p["emb"][t] @ p["w"])
    f = lambda hy: jnp.take_along_axis(
        jax.nn.log_softmax(hy[0] @ p["out"]), hy[1][..., None], -1
    )
    return lax.map(jax.checkpoint(f), (h, y)).mean()


@program(X, T(4), T(6), w="io 7 12", out="- 20 12")
def sampled_softmax(p, x, y, negatives):
    h = relu(x @ p["w"])
    good = (h * p["out"][y]).sum(-1)
    return good - jax.nn.logsumexp(h @ p["out"][negatives].T, -1)


@program(X, w="io 7 12", top="- 12 6", down="io? 12 3", tail="- 3 14")
def adaptive_softmax(p, x):
    h = relu(x @ p["w"])
    return h @ p["top"], h @ p["down"] @ p["tail"]


@program(T(4, 9), emb="- 20 3", up="io 3 7", w="io 7 12", back="io? 12 3")
def factored_and_tied(p, t):
    h = relu(p["emb"][t] @ p["up"] @ p["w"])
    return h @ p["back"] @ p["emb"].T


@program(T(4, 9), emb="- 20 7", w="io 7 12", back="io 12 7")
def scaled_tied_table(p, t):
    emb = p["emb"] / jnp.linalg.norm(p["emb"], axis=-1, keepdims=True)
    return relu(emb[t] * 7**0.5 @ p["w"]) @ p["back"] @ emb.T


@program(T(4, 9), KEY, emb="- 20 7", w="io 7 12", out="- 12 20")
def words_dropped_from_the_table(p, t, key):
    emb = p["emb"] * jax.random.bernoulli(key, 0.9, (20, 1))
    return head(p, emb[t] @ p["w"])


@program(T(4), A(4, 7), emb="- 20 6", w="io 13 12", out="- 12 5")
def rows_beside_features(p, t, x):
    return head(p, jnp.concatenate([x, p["emb"][t]], -1) @ p["w"])


@program(T(4, 3), emb="- 20 6", w="io 18 12", out="- 12 5")
def rows_of_several_tokens_flat(p, t):
    return head(p, p["emb"][t].reshape(4, 18) @ p["w"])


@program(T(4), tables="- 3 20 6", w="io 18 12", out="- 12 5")
def rows_of_several_hashes(p, t):
    at = (t[:, None] * jnp.array([3, 5, 7])) % 20
    rows = jax.vmap(lambda table, i: table[i], (0, 1), 1)(p["tables"], at)
    return head(p, rows.reshape(4, 18) @ p["w"])


@program(T(4, 9), emb="- 20 7", ws="bio 9 7 12", out="- 12 5")
def matrix_of_each_position(p, t):
    return head(p, jnp.einsum("btd,tdo->bto", p["emb"][t], p["ws"]))


# Randomness.


@program(X, KEY, **IO)
def dropout(p, x, key):
    h = relu(x @ p["w"])
    return jnp.where(jax.random.bernoulli(key, 0.5, h.shape), h * 2, 0) @ p["out"]


@program(X, KEY, a="io 7 7", b="io 7 7", out="- 7 5")
def stochastic_depth(p, x, key):
    for i, n in enumerate("ab"):
        keep = jax.random.bernoulli(jax.random.fold_in(key, i), 0.8)
        x = x + keep * jnp.tanh(x @ p[n])
    return head(p, x)


@program(X, KEY, a="io 7 7", b="io 7 7", out="- 7 5")
def stochastic_depth_by_branches(p, x, key):
    for i, n in enumerate("ab"):
        keep = jax.random.bernoulli(jax.random.fold_in(key, i), 0.8)
        f = lambda x, n=n: x + jnp.tanh(x @ p[n])
        x = lax.cond(keep, f, lambda x: x, x)
    return head(p, x)


@program(KEY, w="io? 7 12", out="-? 12 5")
def noise_alone_is_data(p, key):
    return head(p, jax.random.normal(key, (4, 7)) @ p["w"])


@program(X, KEY, mu="io 7 6", lv="io 7 6", dec="io 6 12", out="- 12 7")
def variational_autoencoder(p, x, key):
    m, v = x @ p["mu"], x @ p["lv"]
    z = m + jnp.exp(v / 2) * jax.random.normal(key, m.shape)
    return head(p, z @ p["dec"]), (jnp.exp(v) + m**2 - v).sum()


# What surrounds a program.


@program(X, **IO)
def checkpoints_with_a_policy(p, x):
    policy = jax.checkpoint_policies.save_only_these_names("h")
    f = lambda p, x: checkpoint_name(x @ checkpoint_name(p["w"], "w"), "h")
    return head(p, jax.checkpoint(f, policy=policy)(p, x))


@program(X, **IO)
def behind_a_barrier(p, x):
    w, x = lax.optimization_barrier((p["w"], x))
    return head(p, x @ w)


@program(X, **IO)
def printed(p, x):
    jax.debug.print("{}", p["w"].sum())
    jax.debug.callback(lambda w: None, p["w"])  # noqa: ARG005
    return head(p, x @ p["w"])


@program(X, w="io? 7 12", out="- 12 5")
def through_python(p, x):
    shape = jax.ShapeDtypeStruct((7, 12), jnp.float32)
    return head(p, x @ jax.pure_callback(lambda w: w, shape, p["w"]))


@program(X, w="io? 7 12", out="- 12 5")
def product_in_python(p, x):
    shape = jax.ShapeDtypeStruct((4, 12), jnp.float32)
    return head(p, jax.pure_callback(np.matmul, shape, x, p["w"]))


@program(X, **IO)
def product_with_a_derivative_of_its_own(p, x):
    @jax.custom_vjp
    def mul(x, w):
        return x @ w

    mul.defvjp(lambda x, w: (x @ w, (x, w)), lambda r, g: (g @ r[1].T, r[0].T @ g))
    return head(p, mul(x, p["w"]))


@program(X, **IO)
def product_with_a_tangent_of_its_own(p, x):
    @jax.custom_jvp
    def mul(x, w):
        return x @ w

    mul.defjvp(lambda a, t: (mul(*a), t[0] @ a[1] + a[0] @ t[1]))
    return head(p, mul(x, p["w"]))


@program(X, **IO)
def jit_in_jit(p, x):
    f = jax.jit(lambda w, x: jax.jit(jnp.matmul)(x, w))
    return head(p, f(p["w"], x))


@program(X, a="io 7 7", b="io 7 7", out="- 7 5")
def one_jitted_layer_called_twice(p, x):
    f = jax.jit(lambda w, x: jnp.tanh(x @ w))
    return head(p, f(p["b"], f(p["a"], x)))


@program(X, w="io 7 12", v="io 12 7", out="- 7 5")
def one_jitted_layer_of_two_shapes(p, x):
    f = jax.jit(lambda w, x: jnp.tanh(x @ w))
    return head(p, f(p["v"], f(p["w"], x)))


@program(A(3, 4, 7), **IO)
def microbatches(p, x):
    step = lambda total, x: (total + head(p, x @ p["w"]).sum(), None)
    return lax.scan(step, 0.0, x)[0]


@program(X, **IO)
def gradient_over_microbatches(p, x):
    loss = lambda p, x: (head(p, x @ p["w"]) ** 2).mean()

    def step(total, x):
        return jax.tree.map(jnp.add, total, jax.grad(loss)(p, x)), None

    zeros = jax.tree.map(jnp.zeros_like, p)
    return lax.scan(step, zeros, x.reshape(2, 2, 7))[0]


@program(X, w="io? 7 12", out="- 12 5")
def product_in_a_kernel(p, x):
    from jax.experimental import pallas as pl

    def kernel(x, w, o):
        o[...] = x[...] @ w[...]

    shape = jax.ShapeDtypeStruct((4, 12), jnp.float32)
    return head(p, pl.pallas_call(kernel, shape, interpret=True)(x, p["w"]))


@program(A(4, 7), w="io? 7 12", out="- 12 5")
def sparse_data(p, x):
    from jax.experimental import sparse

    f = sparse.sparsify(lambda x, w: x @ w)
    return head(p, f(sparse.BCOO.fromdense(x, nse=9), p["w"]))


@program(X, A(7), A(7), w="io 7 12", out="- 12 5")
def statistics_as_inputs(p, x, mean, var):
    return head(p, (x - mean) * lax.rsqrt(var + 1e-5) @ p["w"])


@program(X, w="io? 7 12", out="- 12 5")
def constant_positions_first(p, x):
    pos = jnp.sin(jnp.arange(28.0)).reshape(4, 7) @ p["w"]
    return head(p, x @ p["w"] + pos)


@program(X, A(4, 1), w="io 7 12", t="io 1 12", out="- 12 5")
def time_as_one_number(p, x, t):
    return head(p, x @ p["w"] + jnp.sin(t @ p["t"]))


@program(X, ws="bio 3 7 7", out="- 7 5")
def weights_turn_in_a_ring(p, x):
    def step(_, s):
        x, ws = s
        return x + jnp.tanh(x @ ws[0]), jnp.roll(ws, 1, 0)

    return head(p, lax.fori_loop(0, 3, step, (x, p["ws"]))[0])


# Devices.


def on_devices(f, specs, out):
    kind = jax.sharding.AxisType.Auto
    mesh = jax.make_mesh((2,), ("m",), axis_types=(kind,))
    return jax.shard_map(f, mesh=mesh, in_specs=specs, out_specs=out, check_vma=False)


@program(A(4, 8), up="io 8 12", down="io 12 8", out="- 8 5")
def tensor_parallel(p, x):
    f = lambda x, a, b: x + lax.psum(relu(x @ a) @ b, "m")
    f = on_devices(f, (P(), P(None, "m"), P("m")), P())
    return head(p, f(x, p["up"], p["down"]))


@program(A(4, 8), up="io 8 12", down="io 12 8", out="- 8 5")
def tensor_parallel_with_sequences(p, x):
    def f(x, a, b):
        h = relu(lax.all_gather(x, "m", axis=0, tiled=True) @ a)
        return lax.psum_scatter(h @ b, "m", scatter_dimension=0, tiled=True)

    f = on_devices(f, (P("m"), P(None, "m"), P("m")), P("m"))
    return head(p, x + f(x, p["up"], p["down"]))


@program(A(4, 8), w="io 8 12", out="- 12 5")
def fully_sharded(p, x):
    f = lambda x, w: x @ lax.all_gather(w, "m", axis=1, tiled=True)
    return head(p, on_devices(f, (P("m"), P(None, "m")), P("m"))(x, p["w"]))


@program(A(4, 3, 8), w="bio 4 8 12", out="- 12 5")
def experts_on_devices(p, x):
    def f(x, w):
        x = lax.all_to_all(x, "m", 0, 1, tiled=True)
        y = relu(jnp.einsum("ecd,edf->ecf", x, w))
        return lax.all_to_all(y, "m", 1, 0, tiled=True)

    y = on_devices(f, (P(None, "m"), P("m")), P(None, "m"))(
        jnp.tile(x, (1, 2, 1)), p["w"]
    )
    return head(p, y)


@program(A(4, 8), ws="bio 2 8 8", out="- 8 5")
def pipeline_of_two_stages(p, x):
    def f(x, w):
        for _ in range(2):
            x = lax.ppermute(jnp.tanh(x @ w[0]), "m", [(0, 1), (1, 0)])
        return x

    return head(p, on_devices(f, (P("m"), P("m")), P("m"))(x, p["ws"]))


@program(A(4, 8), w="io 8 12", out="- 12 5")
def slice_of_this_device(p, x):
    def f(x, w):
        i = lax.axis_index("m")
        x = lax.dynamic_slice_in_dim(x, i * 4, 4, 1)
        w = lax.dynamic_slice_in_dim(w, i * 4, 4, 0)
        return lax.psum(x @ w, "m")

    return head(p, on_devices(f, (P(), P()), P())(x, p["w"]))


@program(A(4, 8), w="io 8 12", out="- 12 5")
def product_in_a_ring(p, x):
    def f(x, w):
        i, y = lax.axis_index("m"), 0
        for k in range(2):
            at = ((i + k) % 2) * 4
            y += lax.dynamic_slice_in_dim(x, at, 4, 1) @ w
            w = lax.ppermute(w, "m", [(0, 1), (1, 0)])
        return y

    return head(p, on_devices(f, (P("m"), P("m")), P("m"))(x, p["w"]))
