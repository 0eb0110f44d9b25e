"""The LLaMA of the pre-training example."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from examples.pretrain.config import SIZES, ModelConfig
from examples.pretrain.model import Llama, rotate_by_position

SMALL = ModelConfig(
    embed=16,
    mlp=24,
    heads=4,
    kv_heads=2,
    layers=2,
    vocab=31,
    context=12,
    scan=False,
    dtype="float32",
    init_scale=0.3,
)
TOKENS = np.random.default_rng(0).integers(0, SMALL.vocab, (2, SMALL.context))
# Sums of a few dozen float32 terms of order one, in another order.
TOLERANCE = 200 * float(np.finfo(np.float32).eps)


def build(**changes):
    """A model with weights from NumPy, which need no compilation."""
    config = dataclasses.replace(SMALL, **changes)
    graph, abstract = nnx.split(nnx.eval_shape(lambda: fresh(config)), nnx.Param)
    rng = np.random.default_rng(0)
    draw = lambda x: jax.device_put(np.asarray(rng.normal(0.2, 0.3, x.shape), x.dtype))
    return nnx.merge(graph, jax.tree.map(draw, abstract))


def fresh(config):
    return Llama(config, rngs=nnx.Rngs(jax.random.key(0)))


@jax.jit
def _logits(graph, params, tokens):
    return nnx.merge(graph, params)(tokens)


def logits_of(model, tokens=TOKENS):
    graph, params = nnx.split(model, nnx.Param)
    return _logits(graph, params, tokens)


def flat(model):
    """Path to weight, with its metadata."""
    state = nnx.to_flat_state(nnx.state(model, nnx.Param))
    return {"/".join(map(str, path)): value for path, value in state}


def stacked(unrolled, name):
    """A weight of all layers, on a leading axis as the scanned model has it."""
    tail = name.removeprefix("layers/")
    if tail == name:
        return unrolled[name][...]
    return jnp.stack([unrolled[f"layers/{i}/{tail}"][...] for i in range(SMALL.layers)])


@pytest.mark.broad
def test_scan_changes_neither_logits_nor_gradients():
    plain, fancy = build(), build(scan=True, remat=True)
    weights = flat(plain)
    for name, value in flat(fancy).items():
        value[...] = stacked(weights, name)
    logits, plain_grads = logits_and_gradient(plain)
    same, fancy_grads = logits_and_gradient(fancy)
    np.testing.assert_allclose(same, logits, atol=TOLERANCE)
    assert float(jnp.abs(logits).max()) > 0.1
    for name, value in fancy_grads.items():
        want = stacked(plain_grads, name)
        scale = float(jnp.abs(want).max())
        np.testing.assert_allclose(value[...] / scale, want / scale, atol=TOLERANCE)


def test_tokens_looked_up_by_a_product_are_the_same():
    plain, product = build(), build(one_hot=True)
    logits, grads = logits_and_gradient(plain)
    same, gradient = logits_and_gradient(product)
    np.testing.assert_allclose(same, logits, atol=TOLERANCE)
    for name, value in gradient.items():
        got, want = (np.asarray(x[...]) for x in (value, grads[name]))
        assert np.abs(got - want).max() < TOLERANCE * np.abs(want).max(), name


def logits_and_gradient(model):
    graph, params = nnx.split(model, nnx.Param)

    def loss(params):
        logits = nnx.merge(graph, params)(TOKENS)
        return jnp.sum(logits**2), logits

    (_, logits), grads = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    return logits, flat(nnx.merge(graph, grads))


@pytest.mark.broad
def test_same_seed_same_weights_scanned_or_not():
    config = dataclasses.replace(SMALL, scaled_residual=True)
    unrolled = flat(fresh(config))
    for name, value in flat(fresh(dataclasses.replace(config, scan=True))).items():
        np.testing.assert_array_equal(value[...], stacked(unrolled, name))
        if name.endswith("scale"):
            np.testing.assert_array_equal(value[...], 1.0)
            continue
        residual = name.endswith(("o/kernel", "down/kernel"))
        want = config.init_scale * ((2 * config.layers) ** -0.5 if residual else 1.0)
        # Ten standard errors of a standard deviation of `size` normal numbers.
        assert float(value[...].std()) == pytest.approx(
            want, rel=10 * (2 * value[...].size) ** -0.5
        )


@pytest.mark.broad
def test_no_token_sees_a_later_one():
    model, t = build(), 7
    changed = TOKENS.copy()
    changed[:, t] = (changed[:, t] + 1) % SMALL.vocab
    before, after = logits_of(model), logits_of(model, changed)
    np.testing.assert_array_equal(before[:, :t], after[:, :t])
    later = jnp.abs(before - after).max(axis=(0, 2))[t:]
    assert bool(jnp.all(later > TOLERANCE))


@pytest.mark.broad
def test_rotation_depends_on_distance_only():
    rng = np.random.default_rng(1)
    q, k = rng.normal(size=(2, 1, 1, 1, 8)).astype(np.float32)

    def score(i, j):
        turned = [rotate_by_position(x, 100.0, offset=t) for x, t in ((q, i), (k, j))]
        return float(jnp.sum(turned[0] * turned[1]))

    assert score(9, 4) == pytest.approx(score(5, 0), abs=TOLERANCE)
    assert score(9, 4) != pytest.approx(score(9, 3), abs=1e-2)
    assert score(0, 0) == pytest.approx(float((q * k).sum()), abs=TOLERANCE)


@pytest.mark.broad
def test_query_heads_share_keys_and_values():
    """Grouped-query attention is full attention with repeated keys and values."""
    grouped, full = build(), build(kv_heads=SMALL.heads)
    source, target = flat(grouped), flat(full)
    for name, value in target.items():
        new = source[name][...]
        if name.endswith(("k/kernel", "v/kernel")):
            heads = new.reshape(SMALL.embed, SMALL.kv_heads, SMALL.head_dim)
            new = jnp.repeat(heads, 2, axis=1).reshape(SMALL.embed, -1)
        value[...] = new
    np.testing.assert_allclose(logits_of(full), logits_of(grouped), atol=TOLERANCE)


@pytest.mark.broad
def test_computes_in_bfloat16_with_float32_weights():
    model = build(dtype="bfloat16")
    assert {value.dtype for value in flat(model).values()} == {jnp.dtype("float32")}
    logits, exact = logits_of(model), logits_of(build())
    assert logits.dtype == jnp.float32
    error = float(jnp.abs(logits - exact).max() / jnp.abs(exact).max())
    assert 1e-4 < error < 0.1


def count(config):
    """Embedding and head, and per layer attention, SwiGLU and two norms."""
    d = config.embed
    kv = config.kv_heads * config.head_dim
    layer = 2 * d * d + 2 * d * kv + 3 * d * config.mlp + 2 * d
    return 2 * config.vocab * d + config.layers * layer + d


@pytest.mark.parametrize(
    ("size", "published"),
    [("60m", 58.1e6), ("130m", 134.1e6), ("350m", 368.0e6), ("1.3b", 1339.1e6)],
)
def test_papers_sizes(size, published):
    config = SIZES[size]
    model = nnx.eval_shape(lambda: Llama(config, rngs=nnx.Rngs(0)))
    leaves = jax.tree.leaves(nnx.state(model, nnx.Param))
    total = sum(leaf.size for leaf in leaves)
    assert total == count(config)
    assert total == pytest.approx(published, rel=1e-3)


@pytest.mark.parametrize("scan", [False, True])
def test_every_weight_names_its_axes(scan):
    model = nnx.eval_shape(
        lambda: Llama(dataclasses.replace(SMALL, scan=scan), rngs=nnx.Rngs(0))
    )
    layers = ("layers",) if scan else ()
    index = "" if scan else "0/"
    names = {name: v.get_metadata("out_sharding") for name, v in flat(model).items()}
    assert names["embed/embedding"] == ("vocab", "embed")
    assert names["lm_head/kernel"] == ("embed", "vocab")
    assert names[f"layers/{index}attn/q/kernel"] == (*layers, "embed", "heads")
    assert names[f"layers/{index}attn/k/kernel"] == (*layers, "embed", "kv_heads")
    assert names[f"layers/{index}attn/o/kernel"] == (*layers, "heads", "embed")
    assert names[f"layers/{index}mlp/down/kernel"] == (*layers, "mlp", "embed")
    for name, value in flat(model).items():
        assert len(names[name]) == value.ndim, name


@pytest.mark.parametrize(
    "changes", [{"heads": 5}, {"kv_heads": 3}, {"embed": 12}], ids=str
)
def test_impossible_widths_are_refused(changes):
    with pytest.raises(ValueError, match="must divide"):
        dataclasses.replace(SMALL, **changes)
