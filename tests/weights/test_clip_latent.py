"""`clip_qk` in latent attention: every logit becomes gamma times itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import optax_matrix as om

pytestmark = pytest.mark.usefixtures("x64")

D, HEADS, NOPE, ROPE, VALUE, Q_RANK, RANK, TAU = 16, 3, 8, 4, 6, 10, 12, 4.0
X = np.random.default_rng(7).normal(size=(9, D))
# (query down, its norm, query, keys and values down, their norm, up), by their users.
NAMES = {
    "deepseek": (
        *("q_a_proj", "q_a_layernorm", "q_b_proj"),
        *("kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj"),
    ),
    "maxtext": ("wq_a", "q_norm", "wq_b", "wkv_a", "kv_norm", "wkv_b"),
    "megatron": ("q_down_proj", None, "q_up_proj", "kv_down_proj", None, "kv_up_proj"),
    "deepseek without q_a": (
        *(None, None, "q_proj"),
        *("kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj"),
    ),
    "maxtext without wq_a": (None, None, "query", "wkv_a", "kv_norm", "wkv_b"),
}


def kernels(names, seed=0, scale=1.0):
    """The parameters of an attention, in float64."""
    rng = np.random.default_rng(seed)
    draw = lambda *shape: scale * rng.normal(size=shape)
    shapes = (D, Q_RANK), (Q_RANK,), (Q_RANK, HEADS, NOPE + ROPE)
    if names[0] is None:
        shapes = None, None, (D, HEADS, NOPE + ROPE)
    shapes += (D, RANK + ROPE), (RANK,), (RANK, HEADS, NOPE + VALUE)
    pairs = zip(names, shapes, strict=True)
    return {name: draw(*shape) for name, shape in pairs if name is not None}


def normed(x, p, name):
    if name is None:
        return x
    return p[name] * x / np.sqrt(np.mean(x * x, -1, keepdims=True))


def rotated(x):
    """The numbers of position t turned by t radians, in pairs."""
    t = np.arange(len(x)).reshape(-1, *[1] * (x.ndim - 1))
    a, b = x[..., ::2], x[..., 1::2]
    pair = np.cos(t) * a - np.sin(t) * b, np.sin(t) * a + np.cos(t) * b
    return np.concatenate(pair, -1)


def forward(p, names):
    """The logits (heads, queries, keys) and the values, in NumPy and float64."""
    p = {name: np.asarray(w, np.float64) for name, w in p.items()}
    query_down, query_norm, query, down, norm, up = names
    x = X if query_down is None else normed(X @ p[query_down], p, query_norm)
    q = (x @ p[query].reshape(x.shape[-1], -1)).reshape(-1, HEADS, NOPE + ROPE)
    latent, shared = np.split(X @ p[down], [RANK], -1)
    kv = normed(latent, p, norm) @ p[up].reshape(RANK, -1)
    k, v = np.split(kv.reshape(-1, HEADS, NOPE + VALUE), [NOPE], -1)
    logits = np.einsum("thd,shd->hts", q[..., :NOPE], k)
    logits += np.einsum("thd,sd->hts", rotated(q[..., NOPE:]), rotated(shared))
    return logits / np.sqrt(NOPE + ROPE), v


def flat(p, names):
    up = names[2], names[5]
    return {n: w.reshape(len(w), -1) if n in up else w for n, w in p.items()}


@pytest.mark.parametrize("balance", [0.5, 1.0, 0.0])
@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
def test_every_logit_becomes_gamma_times_itself(names, merged, balance):
    p = kernels(names)
    p[names[2]] *= np.array([1.0, 0.3, 0.01])[:, None]  # The last head is below tau.
    p = flat(p, names) if merged else p
    before, values = forward(p, names)
    largest = before.max((1, 2))
    gamma = np.minimum(1, TAU / largest)[:, None, None]
    assert gamma.min() < 0.5 < gamma.max() == 1
    given = {"layers": {"0": {"attn": jax.tree.map(jnp.asarray, p)}}}
    new = om.clip_qk(given, {"layers/0/attn": largest}, TAU, balance=balance)
    new = new["layers"]["0"]["attn"]
    after, same_values = forward(new, names)
    np.testing.assert_allclose(after, gamma * before, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(same_values, values)
    kept = {*p} - ({names[2]} if balance == 1.0 else {names[2], names[5]})
    for name in kept:
        np.testing.assert_array_equal(new[name], p[name])


@pytest.mark.parametrize("merged", [False, True])
def test_keys_and_values_of_kernels_of_their_own(merged):
    """By the sizes of flat kernels alone they were taken for two shared keys."""
    names = NAMES["deepseek"]
    p = kernels(names)
    before, _ = forward(p, names)
    gamma = np.minimum(1, TAU / before.max((1, 2)))[:, None, None]
    apart = {n: w for n, w in p.items() if n != "kv_b_proj"}
    apart |= {"k_b_proj": p["kv_b_proj"][..., :NOPE]}
    apart |= {"v_b_proj": p["kv_b_proj"][..., NOPE:]}
    flatten = ("q_b_proj", "k_b_proj", "v_b_proj") if merged else ()
    apart = {n: w.reshape(len(w), -1) if n in flatten else w for n, w in apart.items()}
    new = om.clip_qk(apart, before.max((1, 2)), TAU)
    np.testing.assert_array_equal(new["v_b_proj"], apart["v_b_proj"])
    parts = (np.reshape(new[n], (RANK, HEADS, -1)) for n in ("k_b_proj", "v_b_proj"))
    after, _ = forward({**new, "kv_b_proj": np.concatenate([*parts], -1)}, names)
    np.testing.assert_allclose(after, gamma * before, rtol=1e-12, atol=1e-12)


def test_an_indexer_of_any_name_is_no_attention():
    p = kernels(NAMES["maxtext"])
    p |= {"lightning_indexer": {"wq_b": p["wq_b"], "wk": p["wkv_b"]}}
    new = om.clip_qk(p, np.full(HEADS, 9.0), TAU)
    np.testing.assert_array_equal(new["lightning_indexer"]["wk"], p["wkv_b"])


@pytest.mark.broad
@pytest.mark.parametrize("layer_axis", [0, 1])
@pytest.mark.parametrize("merged", [False, True])
def test_scanned_layers(layer_axis, merged):
    names, most = NAMES["maxtext"], np.array([[9.0, 1.0, 4.0], [2.0, 8.0, 30.0]])
    layers = [kernels(names, seed) for seed in range(2)]
    layers = [flat(p, names) if merged else p for p in layers]
    stacked = {n: np.stack([p[n] for p in layers], layer_axis) for n in layers[0]}
    new = om.clip_qk(stacked, most, TAU, layer_axis=layer_axis)
    for i, p in enumerate(layers):
        for name, alone in om.clip_qk(p, most[i], TAU).items():
            layer = np.take(np.asarray(new[name]), i, layer_axis)
            np.testing.assert_allclose(layer, alone, rtol=1e-12)


@pytest.mark.broad
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_shardings_stay(kind, cpus):
    """Heads over one axis, as in tensor parallelism; logits where they come from."""
    mesh = jax.make_mesh((2, 2), ("x", "y"), (kind,) * 2, devices=cpus[:4])
    specs = {"wq_b": P("x", "y"), "wkv_b": P("x", "y"), "wkv_a": P("x")}
    put = lambda x, spec: jax.device_put(x, NamedSharding(mesh, spec))
    shapes = {"wq_b": (6, 4, 5), "wkv_a": (8, 6), "wkv_b": (4, 4, 6)}
    p = {name: jnp.ones(shape) for name, shape in shapes.items()}
    most, cut = np.array([9.0, 1.0, 4.0, 5.0]), {n: put(p[n], specs[n]) for n in p}
    expected = om.clip_qk(p, most, TAU)
    for clip in (om.clip_qk, jax.jit(om.clip_qk)):
        for name, x in clip(cut, put(most, P("y")), TAU).items():
            np.testing.assert_allclose(x, expected[name], rtol=1e-12)
            assert x.sharding.is_equivalent_to(cut[name].sharding, x.ndim)


@pytest.mark.broad
def test_biases_and_factors_of_lora_follow_their_kernels():
    names = NAMES["deepseek"]
    whole = {f"{name}/kernel": x for name, x in kernels(names).items()}
    added = {
        "q_b_proj/bias": np.ones((HEADS, NOPE + ROPE)),
        "q_b_proj/lora_b": np.ones((2, HEADS * (NOPE + ROPE))),
        "kv_b_proj/bias": np.ones(HEADS * (NOPE + VALUE)),
        "kv_b_proj/lora_b": np.ones((2, HEADS, NOPE + VALUE)),
        "kv_a_proj_with_mqa/bias": np.ones(RANK + ROPE),
        "kv_a_proj_with_mqa/lora_b": np.ones((2, RANK + ROPE)),
    }
    new = om.clip_qk({**whole, **added}, np.array([9.0, 1.0, 4.0 * TAU]), TAU)
    for path in added:
        name = path.partition("/")[0]
        old = whole[f"{name}/kernel"]
        factor = (new[f"{name}/kernel"] / old)[0].reshape(-1)
        same = np.broadcast_to(factor, (added[path].size // factor.size, factor.size))
        np.testing.assert_allclose(new[path], same.reshape(added[path].shape), 1e-5)


def test_the_indexer_of_sparse_attention_is_no_attention():
    p = kernels(NAMES["maxtext"])
    indexer = {
        "wq_b": np.ones((Q_RANK, 6)),
        "wk": np.ones((D, 3)),
        "k_norm": np.ones(3),
    }
    new = om.clip_qk({"attn": {**p, "indexer": indexer}}, np.full(HEADS, 9.0), TAU)
    assert new["attn"]["indexer"]["wk"] is indexer["wk"]


def test_sizes_that_kernels_do_not_tell_are_given():
    """A shared key of its own kernel, and names of one's own."""
    names = NAMES["deepseek"]
    p = kernels(names)
    expected = om.clip_qk(p, np.full(HEADS, 9.0), TAU)
    apart = {**p, "kv_a_proj_with_mqa": p["kv_a_proj_with_mqa"][:, :RANK]}
    other = {"up_q": p["q_b_proj"], "up_kv": p["kv_b_proj"]}
    options = {"query": "up_q", "key_value": "up_kv"}
    for given, extra in ((apart, {}), (other, options)):
        with pytest.raises(ValueError, match="`qk_nope_head_dim` must be given for ''"):
            om.clip_qk(given, np.full(HEADS, 9.0), TAU, **extra)
        new = om.clip_qk(
            given, np.full(HEADS, 9.0), TAU, qk_nope_head_dim=NOPE, **extra
        )
        for name in ("q", "kv"):
            got = new.get(f"{name}_b_proj", new.get(f"up_{name}"))
            np.testing.assert_array_equal(got, expected[f"{name}_b_proj"])


def test_the_name_of_a_key_is_not_taken_for_values():
    """What the error of a model with `kv_b` once advised scaled the values, too."""
    p, most = kernels(NAMES["deepseek"]), np.full(HEADS, 9.0)
    named = om.clip_qk(p, most, TAU, query="q_b_proj", key="kv_b_proj")
    for name, x in om.clip_qk(p, most, TAU).items():
        np.testing.assert_array_equal(named[name], x)
    fused = {"q_proj": np.ones((D, 12)), "kv_proj": np.ones((D, 6))}
    with pytest.raises(ValueError, match="got 'kv_proj', which holds values"):
        om.clip_qk(fused, np.ones(4), key="kv_proj")


MLA = kernels(NAMES["deepseek"])
NO_QUERY = {name: x for name, x in MLA.items() if name != "q_b_proj"}
ONES = np.ones(HEADS)


@pytest.mark.parametrize(
    ("params", "most", "options", "message"),
    [
        (
            MLA,
            ONES,
            {"qk_nope_head_dim": NOPE - 1},
            "must fit the .* 4 for the",
        ),
        (NO_QUERY, ONES, {"qk_nope_head_dim": 99}, "by `query` and `key_value`"),
        (MLA, np.ones(5), {}, "got 5 for '', whose kernels make 42 for the key_value"),
        (
            {**MLA, "k_proj": np.ones((D, 6))},
            ONES,
            {},
            "a query and a key kernel in ''",
        ),
        ({**MLA, "q_b_norm": ONES}, ONES, {}, "must not normalize .* got 'q_b_norm'"),
        ({**MLA, "k_norm": ONES}, ONES, {}, "must not normalize .* got 'k_norm'"),
        (
            {**kernels(NAMES["deepseek without q_a"]), "q_norm": ONES},
            ONES,
            {},
            "must not normalize .* got 'q_norm'",
        ),
        ({"a": MLA}, {"b": ONES}, {}, "in latent attention by `query` and `key_value`"),
    ],
)
def test_mistakes(params, most, options, message):
    with pytest.raises(ValueError, match=message):
        om.clip_qk(params, most, **options)
