"""Which side of a matrix is on the residual stream, the heads, and layers, by use.

Each model gives the side of its leaves: ``in`` reads the stream, ``out`` writes it, and
``no`` neither. A leaf that does not tell is no error, a leaf that says otherwise is.
"""

import jax
import jax.numpy as jnp
import pytest
from _uses.battery import A, T, read
from jax import lax

MODELS = {}
X, SEQ = A(4, 8), A(4, 9, 8)
relu = jax.nn.relu
# What the use does not tell although it could.
UNTOLD = {"branch_dropped": {"up", "down"}, "gated_branch": {"gate"}}


def model(*inputs, **leaves):
    """Registers a function of parameters; ``"side size size ..."`` for each."""

    def register(fn):
        params = {k: A(*map(int, x.split()[1:])) for k, x in leaves.items()}
        sides = {k: x.split()[0] for k, x in leaves.items()}
        MODELS[fn.__name__] = fn, params, inputs, sides
        return fn

    return register


def rms(x):
    return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)


@model(X, up="in 8 12", down="out 12 8", out="no 8 5")
def before_the_norm(p, x):
    return rms(x + relu(rms(x) @ p["up"]) @ p["down"]) @ p["out"]


@model(X, up="in 8 12", down="out 12 8", out="no 8 5")
def after_the_norm(p, x):
    return rms(x + relu(x @ p["up"]) @ p["down"]) @ p["out"]


@model(X, up="in 8 12", down="out 12 8", out="no 8 5")
def norm_on_both_sides(p, x):
    return (x + rms(relu(rms(x) @ p["up"]) @ p["down"])) @ p["out"]


@model(X, up="in 8 12", down="out 12 8", a="no", out="no 8 5")
def scaled_branch(p, x):
    return (0.5 * x + p["a"] * (relu(x @ p["up"]) @ p["down"])) @ p["out"]


@model(X, A(), up="in 8 12", down="out 12 8", out="no 8 5")
def branch_dropped(p, x, keep):
    y = relu(x @ p["up"]) @ p["down"]
    return (x + jnp.where(keep > 0.5, y, 0)) @ p["out"]


@model(X, gate="in 8 8", up="in 8 12", down="out 12 8", out="no 8 5")
def gated_branch(p, x):
    g = jax.nn.sigmoid(x @ p["gate"])
    return (x + g * (relu(x @ p["up"]) @ p["down"])) @ p["out"]


@model(X, up="in 8 12", gate="in 8 12", down="out 12 8", out="no 8 5")
def gated_units(p, x):
    y = (jax.nn.silu(rms(x) @ p["gate"]) * (rms(x) @ p["up"])) @ p["down"]
    return (x + y) @ p["out"]


@model(
    SEQ, q="in 8 12", k="in 8 12", v="in 8 12", o="out 12 8", up="in 8 16",
    down="out 16 8", out="no 8 5",
)  # fmt: skip
def attention_and_perceptron(p, x):
    q, k, v = ((rms(x) @ p[n]).reshape(4, 9, 3, 4) for n in "qkv")
    x = x + jax.nn.dot_product_attention(q, k, v).reshape(4, 9, 12) @ p["o"]
    x = x + jax.nn.gelu(rms(x) @ p["up"]) @ p["down"]
    return rms(x) @ p["out"]


@model(
    SEQ, q="in 8 12", k="in 8 12", v="in 8 12", o="out 12 8", up="in 8 16",
    down="out 16 8", out="no 8 5",
)  # fmt: skip
def both_branches_at_once(p, x):
    y = rms(x)
    q, k, v = ((y @ p[n]).reshape(4, 9, 3, 4) for n in "qkv")
    a = jax.nn.dot_product_attention(q, k, v).reshape(4, 9, 12) @ p["o"]
    return rms(x + a + jax.nn.gelu(y @ p["up"]) @ p["down"]) @ p["out"]


@model(
    SEQ, A(4, 6, 5), q="in 8 12", k="no 5 12", v="no 5 12", o="out 12 8", out="no 8 5"
)  # fmt: skip
def attention_to_another_input(p, x, y):
    q = (rms(x) @ p["q"]).reshape(4, 9, 3, 4)
    k, v = ((y @ p[n]).reshape(4, 6, 3, 4) for n in "kv")
    x = x + jax.nn.dot_product_attention(q, k, v).reshape(4, 9, 12) @ p["o"]
    return x @ p["out"]


@model(X, up="in 3 8 12", down="out 3 12 8", out="no 8 5")
def scanned(p, x):
    step = lambda x, w: (x + relu(rms(x) @ w["up"]) @ w["down"], None)
    layers = {"up": p["up"], "down": p["down"]}
    return rms(lax.scan(jax.checkpoint(step), x, layers)[0]) @ p["out"]


@model(X, up="in 3 8 12", down="out 3 12 8", out="no 8 5")
def looped(p, x):
    step = lambda i, x: x + relu(rms(x) @ p["up"][i]) @ p["down"][i]
    return rms(lax.fori_loop(0, 3, step, x)) @ p["out"]


@model(X, up="in 8 12", ua="in 8 2", ub="no 2 12", down="out 12 8", out="no 8 5")
def adapter_beside_a_matrix(p, x):
    h = relu(x @ p["up"] + x @ p["ua"] @ p["ub"])
    return (x + h @ p["down"]) @ p["out"]


@model(X, up="in 8 12", ua="in 8 2", ub="no 2 12", down="out 12 8", out="no 8 5")
def adapter_added_to_a_matrix(p, x):
    h = relu(x @ (p["up"] + p["ua"] @ p["ub"]))
    return (x + h @ p["down"]) @ p["out"]


@model(X, w1="in 3 8 12", w2="out 3 12 8", router="in 8 3", out="no 8 5")
def experts(p, x):
    g, e = lax.top_k(rms(x) @ p["router"], 2)
    y = jnp.einsum("bi,bkio->bko", rms(x), p["w1"][e])
    y = jnp.einsum("bkh,bkho->bko", relu(y), p["w2"][e])
    return (x + (y * jax.nn.softmax(g)[..., None]).sum(1)) @ p["out"]


@model(T(4, 9), emb="out 20 8", up="in 8 12", down="out 12 8", out="no 8 5")
def tokens_in_half_precision(p, t):
    x = p["emb"][t].astype(jnp.bfloat16)
    w = lambda n: p[n].astype(jnp.bfloat16)
    y = rms(x.astype(jnp.float32)).astype(jnp.bfloat16)
    x = x + relu(y @ w("up")) @ w("down")
    return x.astype(jnp.float32) @ p["out"]


@model(X, a="no 8 12", b="no 12 8", out="no 8 5")
def no_stream(p, x):
    return relu(relu(x @ p["a"]) @ p["b"]) @ p["out"]


@model(X, a="no 8 12", b="no 8 12", out="no 12 5")
def sum_of_two_branches(p, x):
    return relu(x @ p["a"] + jnp.tanh(x @ p["b"])) @ p["out"]


@model(SEQ, wx="no 8 12", wh="no 12 12", out="no 12 5")
def recurrence(p, x):
    step = lambda h, x: (jnp.tanh(x @ p["wx"] + h @ p["wh"]), None)
    return lax.scan(step, jnp.zeros((4, 12)), jnp.moveaxis(x, 1, 0))[0] @ p["out"]


@model(X, down1="no 8 12", down2="no 12 6", up1="no 6 12", up2="no 24 8", out="no 8 5")
def skips_by_concatenation(p, x):
    a = relu(x @ p["down1"])
    h = relu(relu(a @ p["down2"]) @ p["up1"])
    return relu(jnp.concatenate([a, h], -1) @ p["up2"]) @ p["out"]


@model(A(2, 6, 6, 8), c1="in 3 3 8 12", c2="out 3 3 12 8", out="no 8 5")
def residual_convolutions(p, x):
    conv = lambda x, w: lax.conv_general_dilated(
        x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return (x + conv(relu(conv(x, p["c1"])), p["c2"])).mean((1, 2)) @ p["out"]


@model(X, f="in 4 12", fo="out 12 4", g="in 4 12", go="out 12 4", out="no 8 5")
def reversible(p, x):
    a, b = jnp.split(x, 2, -1)
    a = a + relu(b @ p["f"]) @ p["fo"]
    b = b + relu(a @ p["g"]) @ p["go"]
    return jnp.concatenate([a, b], -1) @ p["out"]


@pytest.mark.parametrize("name", MODELS)
def test_sides_of_the_stream(name):
    fn, params, inputs, sides = MODELS[name]
    wrong, untold = {}, set()
    for verdict in read(fn, params, *inputs):
        if verdict.numbers is None or verdict.kind != "matrix":
            continue
        got, want = verdict.numbers.residual or "no", sides[verdict.path]
        if got == "no" != want:
            untold.add(verdict.path)
        elif got != want:
            wrong[verdict.path] = got, want
    assert wrong == {}
    assert untold == UNTOLD.get(name, set())
