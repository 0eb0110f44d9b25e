"""`clip_qk`: the logits of a real attention fall to tau, and nothing else changes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn, nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import optax_matrix as om

D, HEADS, DIM, TAU = 6, 4, 5, 3.0
X = np.random.default_rng(7).standard_normal((2, 9, D)).astype(np.float32)


def draw(*shape, seed=0):
    x = np.random.default_rng(seed).standard_normal(shape)
    return jnp.asarray(x, jnp.float32)


def logits(query, key, x=X):
    """(batch, heads, queries, keys), by a loop over heads in NumPy."""
    q, k = (np.asarray(w, np.float64).reshape(D, -1, DIM) for w in (query, key))
    group = q.shape[1] // k.shape[1]
    x = np.asarray(x, np.float64)
    each = [
        np.einsum("btd,bsd->bts", x @ q[:, h], x @ k[:, h // group]) / DIM**0.5
        for h in range(q.shape[1])
    ]
    return np.stack(each, 1)


def largest(query, key):
    return logits(query, key).max((0, 2, 3))


@pytest.mark.broad
@pytest.mark.parametrize(
    "names",
    [
        ("lora_a", "lora_b"),
        ("lora/lora_a", "lora/lora_b"),
        ("kernel_lora_a", "kernel_lora_b"),
        ("lora_A/kernel", "lora_B/kernel"),
    ],
    ids=str,
)
@pytest.mark.parametrize("rank", [2, 8])
def test_of_loras_factors_b_is_scaled(rank, names):
    """A has the inputs; a rank may be divisible by the number of heads, or not."""
    parts, whole = {}, {}
    for seed, name in enumerate(("query", "key")):
        w, a = draw(D, HEADS * DIM, seed=seed), draw(D, rank, seed=seed + 2)
        b = draw(rank, HEADS * DIM, seed=seed + 4)
        parts |= {f"{name}/kernel": w, f"{name}/{names[0]}": a, f"{name}/{names[1]}": b}
        whole[name] = w + a @ b
    before = largest(**whole)
    assert (before > TAU).any()
    parts = {f"attn/{path}": x for path, x in parts.items()}
    new = om.clip_qk(parts, {"attn": before}, TAU)
    of = lambda part, name: new[f"attn/{part}/{name}"]
    a, b = names
    new = {x: of(x, "kernel") + of(x, a) @ of(x, b) for x in whole}
    np.testing.assert_allclose(largest(**new), np.minimum(before, TAU), rtol=1e-5)


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (("q_proj/{}", "k_proj/{}"), {"query": "q_proj/{}", "key": "k_proj/{}"}),
        (("{}/q_proj", "{}/k_proj"), {}),
    ],
)
def test_factors_are_found_by_other_names_and_above_projections(paths, names):
    """An expression may name the factor, and the factor its projections."""
    of = lambda text: text.format("lora_b")
    params = {of(path): draw(4, HEADS * DIM) for path in paths}
    expressions = {part: name.format("(kernel|lora_b)") for part, name in names.items()}
    new = om.clip_qk(params, jnp.full(HEADS, 4 * TAU), TAU, **expressions)
    for path, x in params.items():
        np.testing.assert_allclose(new[path], x / 2, rtol=1e-6)


@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("key_heads", [4, 2, 1])
@pytest.mark.parametrize("balance", [0.5, 1.0, 0.0])
def test_every_head_ends_at_or_below_tau(key_heads, merged, balance):
    # Heads of very different sizes: the first is far above tau, the last below.
    sizes = jnp.array([4.0, 1.0, 0.3, 0.05])[:, None]
    query, key = draw(D, HEADS, DIM) * sizes, draw(D, key_heads, DIM, seed=1)
    before = largest(query, key)
    assert (before > TAU).any()
    assert (before < TAU).any()
    flat = lambda x: x.reshape(D, -1) if merged else x
    params = {"attn": {"query": {"kernel": flat(query)}, "key": {"kernel": flat(key)}}}
    clipped = om.clip_qk(params, {"attn": before}, TAU, balance=balance)["attn"]
    new = clipped["query"]["kernel"], clipped["key"]["kernel"]
    gamma = np.minimum(1, TAU / before)
    np.testing.assert_allclose(
        logits(*new), gamma[:, None, None] * logits(query, key), rtol=1e-5, atol=1e-5
    )
    assert largest(*new).max() <= TAU * (1 + 1e-5)
    if balance == 1.0:
        np.testing.assert_array_equal(new[1], flat(key))
    if key_heads == HEADS and balance == 0.5:  # The report's own rule.
        root = np.sqrt(gamma)[:, None]
        np.testing.assert_allclose(new[0].reshape(D, HEADS, DIM), query * root, 1e-5)
        np.testing.assert_allclose(new[1].reshape(D, HEADS, DIM), key * root, 1e-5)


@pytest.mark.parametrize("layer_axis", [0, 1])
@pytest.mark.parametrize("merged", [False, True])
def test_scanned_layers(layer_axis, merged):
    query, key = 2 * draw(3, D, HEADS, DIM), draw(3, D, 2, DIM, seed=1)
    before = np.stack([largest(*pair) for pair in zip(query, key, strict=True)])
    place = lambda x: jnp.moveaxis(x.reshape(3, D, -1) if merged else x, 0, layer_axis)
    params = {"layers": {"wq": place(query), "wk": place(key), "wv": place(key)}}
    new = om.clip_qk(params, {"layers": before}, TAU, layer_axis=layer_axis)["layers"]
    np.testing.assert_array_equal(new["wv"], params["layers"]["wv"])
    for i in range(3):
        one = om.clip_qk({"q": query[i], "k": key[i]}, before[i], TAU)
        for name, alone in (("wq", one["q"]), ("wk", one["k"])):
            layer = jnp.moveaxis(new[name], layer_axis, 0)[i]
            np.testing.assert_allclose(layer.reshape(alone.shape), alone, rtol=1e-6)


def nnx_attention(bias):
    model = nnx.MultiHeadAttention(
        num_heads=HEADS,
        in_features=D,
        qkv_features=HEADS * DIM,
        use_bias=bias,
        bias_init=nnx.initializers.normal(2.0),
        kernel_init=nnx.initializers.normal(1.0),
        rngs=nnx.Rngs(0),
        decode=False,
    )

    def run(params):
        nnx.update(model, params)
        q, k = model.query(X), model.key(X)
        return jnp.einsum("bthd,bshd->bhts", q, k) / DIM**0.5

    return nnx.state(model, nnx.Param), run


def linen_attention(bias):
    make = lambda name: nn.DenseGeneral(
        (HEADS, DIM),
        use_bias=bias,
        kernel_init=nn.initializers.normal(1.0),
        bias_init=nn.initializers.normal(2.0),
        name=name,
    )

    class Attention(nn.Module):
        @nn.compact
        def __call__(self, x):
            q, k = make("query")(x), make("key")(x)
            return jnp.einsum("bthd,bshd->bhts", q, k) / DIM**0.5

    model = Attention()
    return model.init(jax.random.key(0), X), lambda params: model.apply(params, X)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("make", [nnx_attention, linen_attention])
def test_frameworks(make, bias):
    params, run = make(bias)
    before = run(params)
    most = before.max((0, 2, 3))
    clipped = jax.jit(om.clip_qk)(params, most, TAU)
    assert jax.tree.structure(clipped) == jax.tree.structure(params)
    gamma = jnp.minimum(1, TAU / most)[:, None, None]
    assert gamma.min() < 1
    np.testing.assert_allclose(run(clipped), gamma * before, rtol=1e-4, atol=1e-5)


def test_logits_as_a_model_records_them():
    """Leaves below the module, several calls, half precision, other leaves."""
    kernels = {"q_proj": draw(D, 20), "k_proj": draw(D, 20, seed=1)}
    params = {"blocks": [{"attn": kernels, "mlp": draw(3, 3)}]}
    params = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    most = jnp.array([8.0, 1.0, 2.0, 0.0]), jnp.array([1.0, 5.0, 0.0, 1.0])
    sown = {"blocks": [{"attn": {"max_logits": most}}]}
    clipped = om.clip_qk(params, sown, 2.0)["blocks"][0]
    expected = om.clip_qk(params, {"blocks/0/attn": jnp.maximum(*most)}, 2.0)
    assert clipped["attn"]["q_proj"].dtype == jnp.bfloat16
    jax.tree.map(np.testing.assert_array_equal, clipped, expected["blocks"][0])
    assert clipped["mlp"] is params["blocks"][0]["mlp"]
    ratio = clipped["attn"]["q_proj"] / params["blocks"][0]["attn"]["q_proj"]
    ratio = ratio.astype(jnp.float32).reshape(D, HEADS, DIM)[0, :, 0]
    np.testing.assert_allclose(ratio, [0.5, 0.4**0.5, 1, 1], rtol=1e-2)


def test_logits_that_are_not_finite_clip_nothing():
    params = {"q": draw(D, 2, DIM), "k": draw(D, 2, DIM)}
    same = om.clip_qk(params, jnp.array([jnp.nan, jnp.inf]), TAU)
    jax.tree.map(np.testing.assert_array_equal, same, params)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("spec", [P("x"), P()], ids=["sharded", "replicated"])
def test_shardings_stay(kind, spec, cpus):
    mesh = jax.make_mesh((2, 2), ("x", "y"), (kind,) * 2, devices=cpus[:4])
    put = lambda x, s: jax.device_put(x, NamedSharding(mesh, s))
    params = {"q": draw(D, HEADS, DIM), "k": draw(D, 2, DIM)}
    most = jnp.array([8.0, 1.0, 2.0, 9.0])
    expected = om.clip_qk(params, most, TAU)
    cut = {"q": put(params["q"], P("x", "y")), "k": put(params["k"], P("x", "y"))}
    new = jax.jit(om.clip_qk)(cut, put(most, spec), TAU)
    for name, leaf in new.items():
        np.testing.assert_allclose(leaf, expected[name], rtol=1e-6)
        if kind is AxisType.Explicit:
            assert jax.typeof(leaf) == jax.typeof(cut[name])


KERNELS = {"query": draw(D, 4, DIM), "key": draw(D, 4, DIM)}
ONES = np.ones(4)


@pytest.mark.parametrize(
    ("params", "most", "options", "message"),
    [
        (
            {"a": KERNELS},
            {"b": ONES},
            {},
            "belong to attentions .* got 'b', .*'a'",
        ),
        ({"a": KERNELS, "b": KERNELS}, {"a": ONES}, {}, "got none for 'b'; zeros"),
        (KERNELS, np.ones(3), {}, "one number for each query head, got 3 for ''"),
        (KERNELS, np.ones(()), {}, "got a scalar at ''"),
        (KERNELS, np.ones((2, 4)), {}, "kernels .in, heads, dim."),
        ({"query": draw(D, 20)}, ONES, {}, "a query and a key kernel in ''"),
        (
            {**KERNELS, "query": draw(D, 1, 20)},
            ONES,
            {},
            r"with 4 heads, or .*got \(6, 1, 20\) for 'query'",
        ),
        ({**KERNELS, "q_norm": {"scale": ONES}}, ONES, {}, "got 'q_norm/scale'; such"),
        ({**KERNELS, "key_ln": {"scale": ONES}}, ONES, {}, "got 'key_ln/scale'; such"),
        ({"c_attn": draw(D, 60)}, {"c_attn": ONES}, {}, "belong to attentions"),
        (KERNELS, ONES, {"tau": 0.0}, "`tau` must be positive, got 0.0"),
        (KERNELS, ONES, {"balance": 2.0}, "`balance` must be a number from 0 to 1"),
    ],
)
def test_mistakes(params, most, options, message):
    with pytest.raises(ValueError, match=message):
        om.clip_qk(params, most, **options)
