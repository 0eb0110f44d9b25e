"""`heads="split"`: each head of queries, keys and values is a matrix of its own."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _matrices import ones, zeros
from _registry import RECIPES
from _steps import first_update
from flax import linen as nn

import optax_matrix as om
from optax_matrix.matrices import (
    MatrixDimensionNumbers,
    UnmatchedPatternWarning,
    by_path,
    infer,
    split_heads,
)

D, N, H = 12, 3, 4  # Width, heads, size of a head.
# Path, shape, and the matrices (number, rows, columns) with and without the switch.
LEAVES = {
    "attn/query/kernel": ((D, N, H), (1, N * H, D), (N, H, D)),
    "attn/key/kernel": ((D, 2, H), (1, 2 * H, D), (2, H, D)),
    "attn/out/kernel": ((N, H, D), (1, D, N * H), (1, D, N * H)),
    "attn/qkv/kernel": ((D, 3, N, H), (3, N * H, D), (3 * N, H, D)),
    "mla/q_a/kernel": ((D, 6), (1, 6, D), (1, 6, D)),
    "mla/q_b/kernel": ((6, N, H), (1, N * H, 6), (N, H, 6)),
    "mla/wkv_b/kernel": ((6, N, 2 * H), (1, 2 * N * H, 6), (N, 2 * H, 6)),
    "mlp/up/kernel": ((D, 40), (1, 40, D), (1, 40, D)),
    "mlp/value_net/kernel": ((D, 40), (1, 40, D), (1, 40, D)),
}


def tree(leaves):
    return {p: np.zeros(shape, np.float32) for p, (shape, *_) in leaves.items()}


def seen(params, rule):
    rows = om.describe(params, dimension_numbers=rule).rows
    return {r.leaf: r.view for r in rows if r.optimizer == "matrix"}


def view(count, rows, cols):
    return f"{count}x ({rows}, {cols})"


@pytest.mark.broad
def test_which_kernels_are_split():
    params = tree(LEAVES)
    assert seen(params, None) == {
        p: view(*whole) for p, (_, whole, _) in LEAVES.items()
    }
    split = {p: view(*heads) for p, (_, _, heads) in LEAVES.items()}
    assert seen(params, split_heads()) == split
    rows = om.describe(params, dimension_numbers=split_heads()).rows
    why = {row.leaf: row.why for row in rows}
    assert "split by heads" in why["attn/query/kernel"]


@pytest.mark.parametrize("name", ["q_proj", "wq", "attention/query", "Wqkv", "k_proj"])
def test_flat_kernels_need_the_size_of_a_head(name):
    params = {name: {"kernel": zeros(D, N * H)}}
    path = f"{name}/kernel"
    assert seen(params, split_heads(head_dim=H)) == {path: view(N, H, D)}
    with pytest.raises(ValueError, match=rf"`head_dim` must divide .*{path}.*got None"):
        om.muon(0.1, heads="split").init(params)
    with pytest.raises(ValueError, match=r"`head_dim` must divide .*got 5"):
        om.muon(0.1, dimension_numbers=split_heads(head_dim=5)).init(params)


@pytest.mark.broad
def test_scanned_layers_and_rules_stay():
    params = {"layers": {"query": {"kernel": jnp.zeros((5, D, N, H))}}}
    assert seen(params, split_heads()) == {"layers/query/kernel": view(5 * N, H, D)}
    flat = {"layers": {"q_proj": {"kernel": jnp.zeros((5, D, N * H))}}}
    rule = by_path(numbers={"q_proj": MatrixDimensionNumbers(1, 2, layer_axis=0)})
    split = split_heads(rule, head_dim=H)
    assert seen(flat, split) == {"layers/q_proj/kernel": view(5 * N, H, D)}
    of_optax = optax.contrib.MuonDimensionNumbers(0, (1, 2))
    rule = split_heads(by_path(numbers={"query": of_optax}))
    assert seen({"query": jnp.zeros((D, N, H))}, rule) == {"query": view(N, H, D)}
    excluded = split_heads(by_path(exclude="query"))
    both = {**params, "up": {"kernel": jnp.zeros((D, 8))}}
    assert list(seen(both, excluded)) == ["up/kernel"]


def test_flat_heads_are_not_passed_over():
    """Layers, and the query, key and value of a fused kernel, are no heads."""
    for path, shape in (("layers/q_proj/kernel", (5, D, N * H)), ("qkv/w", (D, 3, 12))):
        params = {path: np.zeros(shape, np.float32)}
        with pytest.raises(ValueError, match="`head_dim` must divide the 12 outputs"):
            om.muon(0.1, heads="split").init(params)
        rows = seen(params, split_heads(head_dim=H))
        assert rows == {path: view(shape[0 if shape[0] == 5 else 1] * N, H, D)}
    given = by_path(numbers={"query": MatrixDimensionNumbers(1, 2)})  # Heads first.
    params = {"query": zeros(N, D, H)}
    assert seen(params, split_heads(given)) == {"query": view(N, H, D)}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("flat", [False, True])
def test_key_and_value_of_a_head_in_latent_attention_are_two_matrices(flat):
    """As sections that are given, for kernels (rank, heads, dim) and flat ones."""
    nope, value, rank = 5, 3, 6
    g = np.random.default_rng(0).normal(size=(rank, N, nope + value))
    kv_b = MatrixDimensionNumbers(-3, -1, output_sections=(nope, value))
    if flat:
        kv_b = MatrixDimensionNumbers(output_sections=(nope, value) * N)
    rule = by_path(numbers={"kv_b": kv_b})
    shape = (rank, N * (nope + value)) if flat else g.shape
    grads = {"kv_b_proj": g.reshape(shape)}
    options = {"polar": "polar_svd", "b1": 0.0, "scaling": "max"}
    for given in (rule, split_heads(rule, head_dim=H if flat else None)):
        tx = om.scale_by_muon(dimension_numbers=given, **options)
        update = first_update(tx, grads, grads)[0]["kv_b_proj"].reshape(g.shape)
        for head in range(N):
            for part in (slice(nope), slice(nope, None)):
                u, _, vt = np.linalg.svd(g[:, head, part], full_matrices=False)
                wanted = 0.2 * max(len(u), vt.shape[1]) ** 0.5 * u @ vt
                np.testing.assert_allclose(update[:, head, part], wanted, rtol=1e-9)


def test_a_model_without_such_kernels_gets_a_warning():
    with pytest.warns(UnmatchedPatternWarning, match="`heads` has"):
        om.muon(0.1, heads="split").init({"up": ones(4, 8)})


@pytest.mark.broad
def test_of_flax_attention_and_of_an_inferred_rule():
    layer = nn.MultiHeadDotProductAttention(num_heads=N, qkv_features=N * H)
    params = layer.init(jax.random.key(0), jnp.zeros((1, 5, D)))["params"]
    found = seen(params, split_heads())
    assert found["query/kernel"] == found["value/kernel"] == view(N, H, D)
    assert found["out/kernel"] == view(1, D, N * H)
    boxed = {
        "query": nn.LogicallyPartitioned(jnp.zeros((D, N, H)), ("embed", "heads", "kv"))
    }
    assert seen(boxed, split_heads(infer(boxed))) == {"query": view(N, H, D)}


@pytest.mark.broad
@pytest.mark.usefixtures("x64")
def test_muon_is_that_of_each_head():
    grads = {"query": {"kernel": jax.random.normal(jax.random.key(0), (D, N, 2 * D))}}
    tx = om.scale_by_muon(polar="polar_svd", b1=0.0, heads="split")
    update = jax.jit(tx.update)(grads, tx.init(grads), grads)[0]["query"]["kernel"]
    for head in range(N):
        g = np.asarray(grads["query"]["kernel"][:, head]).T  # (out, in)
        u, _, vt = np.linalg.svd(g, full_matrices=False)
        factor = np.sqrt(max(1, g.shape[0] / g.shape[1]))
        np.testing.assert_allclose(update[:, head].T, factor * u @ vt, rtol=1e-9)


def _runs(name):
    params = {"query": {"kernel": ones(D, N, H)}, "up": ones(D, 8)}
    tx, rule = RECIPES[name](0.1, heads="split"), split_heads()
    other = RECIPES[name](0.1, dimension_numbers=rule)
    key = jax.random.key(1)
    grads = jax.tree.map(lambda w: jax.random.normal(key, w.shape), params)
    step = lambda tx: jax.jit(tx.update)(grads, tx.init(params), params)[0]
    jax.tree.map(np.testing.assert_array_equal, step(tx), step(other))


@pytest.mark.broad
@pytest.mark.daily("muoneq")
@pytest.mark.parametrize("name", ["muoneq", "aro"])
def test_the_switch_is_the_rule(name):
    _runs(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(RECIPES) - {"muoneq", "aro"}))
def test_the_switch_is_the_rule_for_every_recipe(name):
    _runs(name)


def test_beside_a_tree_it_is_refused():
    numbers = {"query": MatrixDimensionNumbers(0, (1, 2))}
    with pytest.raises(
        ValueError,
        match=r"`dimension_numbers` beside heads='split'\) must be a rule.*got dict",
    ):
        om.muon(0.1, heads="split", dimension_numbers=numbers)
    with pytest.raises(ValueError, match="`heads` must be one of 'split', None"):
        om.muon(0.1, heads=8)  # pyright: ignore[reportArgumentType]
