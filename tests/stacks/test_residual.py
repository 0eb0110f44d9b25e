"""The residual stream as metadata tells it: rotate it, and the model is the same."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _matrices import ones
from flax import linen as nn, nnx

from examples.pretrain.config import SIZES
from examples.pretrain.model import Llama
from optax_matrix._paths import map_named, named_leaves
from optax_matrix.matrices import infer
from optax_matrix.matrices.rules import by_path
from optax_matrix.matrices.view import MatrixDimensionNumbers
from optax_matrix.stacks.layout import make_layout
from optax_matrix.stacks.residual_sets import residual_sets
from optax_matrix.weights import rotate_residual

TINY = dataclasses.replace(SIZES["tiny"], layers=3, dtype=jnp.float32)


def _model(scan=False):
    config = dataclasses.replace(TINY, scan=scan)
    return Llama(config, rngs=nnx.Rngs(0))


def _rotation(side):
    return np.linalg.qr(np.random.default_rng(0).standard_normal((side, side)))[0]


@pytest.mark.slow
@pytest.mark.parametrize("scan", [False, True])
def test_logits_do_not_see_a_rotation_of_the_stream(scan):
    """ARO, Eq. 47: this proves the residual sides that `infer` reads."""
    model = _model(scan)
    graph, params = nnx.split(model, nnx.Param)
    params = nnx.to_pure_dict(params)
    rule = infer(model)
    tokens = jax.random.randint(jax.random.key(1), (2, 16), 0, TINY.vocab)

    def logits(params):
        state = nnx.state(model, nnx.Param)
        nnx.replace_by_pure_dict(state, params)
        return nnx.merge(graph, state)(tokens)

    want = logits(params)
    q = _rotation(TINY.embed).astype(np.float32)
    turned = rotate_residual(params, q, dimension_numbers=rule)
    scale = float(jnp.abs(want).max())
    np.testing.assert_allclose(logits(turned), want, atol=2e-6 * scale)
    moved = jax.tree.map(lambda x, y: float(jnp.abs(x - y).max()), turned, params)
    still = {path for path, by in named_leaves(moved).items() if by < 1e-3}
    assert all("norm" in path for path in still)
    # The other side would not do.
    square = lambda path, leaf: _flipped(leaf, q) if "attn/o" in path else leaf
    off = logits(map_named(square, turned))
    assert float(jnp.abs(off - want).max()) > 1e-3 * scale


def _flipped(kernel, q):
    """A turned kernel (..., in, out) with its input turned in place of its output."""
    return q.T @ (kernel @ q.T)


@pytest.mark.parametrize("scan", [False, True])
def test_chain_has_a_set_between_any_two_layers(scan):
    model = nnx.eval_shape(lambda: _model(scan))
    params = nnx.state(model, nnx.Param)
    layout = make_layout(params, infer(model))
    member, count = residual_sets(layout, "chain")
    assert count == TINY.layers + 1
    for name, group in layout.groups.items():
        sets = np.asarray(member[name])
        assert sets.shape == (group.count,)
        reads = group.residual == "in"
        assert set(sets) == set(range(TINY.layers) if reads else range(1, count))
        for m in group.members:
            number = [int(p) for p in m.path.split("/") if p.isdigit()]
            want = number * m.count if number else list(range(TINY.layers))
            own = sets[m.start : m.start + m.count] - (0 if reads else 1)
            assert own.tolist() == want
    member, count = residual_sets(layout, "global")
    assert count == 1
    assert not any(np.any(sets) for sets in member.values())


def test_head_and_embedding_are_at_the_ends():
    rule = by_path(
        numbers={
            "embed": MatrixDimensionNumbers(0, 1, residual="out"),
            "head|up": MatrixDimensionNumbers(0, 1, residual="in"),
        }
    )
    params = {
        "embed": ones(7, 4),
        "head": ones(4, 9),
        "l": {"0": {"up": ones(4, 8)}, "1": {"up": ones(4, 8)}},
    }
    layout = make_layout(params, rule)
    member, count = residual_sets(layout, "chain")
    assert count == 3
    of = {
        m.path: int(member[n][m.start])
        for n, g in layout.groups.items()
        for m in g.members
    }
    assert of == {"embed": 0, "head": 2, "l/0/up": 0, "l/1/up": 1}


def _chain(shapes, rule=None):
    """The set of each matrix of each path."""
    params = {path: jax.ShapeDtypeStruct(s, jnp.float32) for path, s in shapes.items()}
    reads = MatrixDimensionNumbers(-2, -1, residual="in")
    writes = MatrixDimensionNumbers(-2, -1, residual="out")
    table = by_path(numbers={"up|query|Dense_0": reads, "down|out|Dense_1": writes})
    layout = make_layout(params, rule or table)
    member, _ = residual_sets(layout, "chain")
    return {
        m.path: np.asarray(member[name])[m.start : m.start + m.count].tolist()
        for name, group in layout.groups.items()
        for m in group.members
    }


def _mlp(where, *batch):
    return {f"{where}/up": (*batch, 8, 12), f"{where}/down": (*batch, 12, 8)}


def test_experts_are_no_layers():
    attention = {f"layers_{i}/attn/query": (8, 8) for i in range(2)}
    for shapes in (
        _mlp("layers_0/experts", 4) | _mlp("layers_1/experts", 4),
        _mlp("layers_0/experts_0") | _mlp("layers_0/experts_1") | _mlp("layers_1"),
        _mlp("layers_0/experts/0") | _mlp("layers_0/experts/1") | _mlp("layers_1"),
    ):
        for path, sets in _chain(shapes | attention).items():
            want = int(path[len("layers_")]) + path.endswith("down")
            assert set(sets) == {want}, path


@pytest.mark.broad
def test_numbers_of_stages_and_layers_count_together():
    places = [f"stages/{i}/layers/{j}" for i in range(2) for j in range(11)]
    got = _chain({p: s for place in places for p, s in _mlp(place).items()})
    assert [got[f"{place}/up"] for place in places] == [[i] for i in range(22)]
    assert [got[f"{place}/down"] for place in places] == [[i + 1] for i in range(22)]
    got = _chain(_mlp("stages_0/layers", 3) | _mlp("stages_1/layers", 3))
    assert got["stages_1/layers/up"] == [3, 4, 5]


def test_parts_of_a_layer_are_no_layers():
    """As Linen names what has no name."""
    parts = ("Attention_0/query", "Attention_0/out", "Dense_0", "Dense_1")
    got = _chain({f"Block_{i}/{p}/kernel": (8, 8) for i in range(2) for p in parts})
    assert [got[f"Block_1/{p}/kernel"] for p in parts] == [[1], [2], [1], [2]]


def test_the_axis_of_scanned_layers():
    shapes = _mlp("layers/mlp", 3) | _mlp("layers/experts", 3, 2)
    got = _chain(shapes)
    assert got["layers/mlp/down"] == [1, 2, 3]
    assert got["layers/experts/up"] == [0, 0, 1, 1, 2, 2]
    with pytest.raises(ValueError, match="parameters without layers"):
        _chain(_mlp("experts", 2))
    numbers = MatrixDimensionNumbers(-2, -1, residual="in", layer_axis=1)
    rule = by_path(numbers={"experts/up": numbers})
    got = _chain({"experts/up": (2, 3, 8, 12)}, rule)
    assert got["experts/up"] == [0, 1, 2, 0, 1, 2]


def test_infer_tells_layers_from_experts():
    boxed = lambda shape, names: nn.LogicallyPartitioned(
        np.ones(shape, np.float32), names
    )
    model = {
        "up": boxed((2, 3, 8, 12), ("experts", "layers", "embed", "mlp")),
        "down": boxed((12, 3, 8), ("mlp", "layers", "embed")),
    }
    shapes = {path: box.value.shape for path, box in model.items()}
    got = _chain(shapes, infer(model))
    assert got == {"up": [0, 1, 2, 0, 1, 2], "down": [1, 2, 3]}
    one = {"up": boxed((2, 8, 12), ("experts", "embed", "mlp"))}
    with pytest.raises(ValueError, match="parameters without layers"):
        _chain({"up": (2, 8, 12)}, infer(one))


@pytest.mark.parametrize(
    "shapes",
    [
        _mlp("encoder/layers_0") | _mlp("decoder/layers_0"),
        _mlp("dense_layers", 3) | _mlp("moe_layers", 3),
        _mlp("a", 3) | _mlp("b", 5),
        _mlp("stages/0/layers/0") | _mlp("stages/0/layers/1") | _mlp("stages/1"),
    ],
)
def test_layers_without_an_order_are_refused(shapes):
    with pytest.raises(ValueError, match="several lists of layers"):
        _chain(shapes)


def test_what_is_not_known_is_said():
    model = {"mix": nn.LogicallyPartitioned(ones(4, 8), ("features", "mlp"))}
    layout = make_layout({"mix": ones(4, 8)}, infer(model))
    message = r"`sharing` .* for mix \(4, 8\).* names embed, d_model, hidden"
    with pytest.raises(ValueError, match=message):
        residual_sets(layout, "global")
    numbers = {"a": MatrixDimensionNumbers(residual="in")}
    layout = make_layout({"a": ones(4, 8)}, numbers)
    with pytest.raises(ValueError, match="'global' for parameters without layers"):
        residual_sets(layout, "chain")
    rule = by_path(numbers={"a|b": MatrixDimensionNumbers(residual="in")})
    layout = make_layout({"a": ones(4, 8), "b": ones(6, 8)}, rule)
    with pytest.raises(ValueError, match=r"of one size, got 4 .*6 "):
        residual_sets(layout, "global")
