"""The leaves of public models: right, or reported at `init` with what settles it."""

import json
import warnings

import _models
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _walks import walk
from flax import nnx

import optax_matrix as om
from optax_matrix.matrices.decisions import decide
from optax_matrix.matrices.doubts import doubts, read_from_names

TABLE = _models.tables()


def _shape(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


def _doubts(params, dimension_numbers=None):
    return doubts(params, decide(params, dimension_numbers))


def _reasons(params, dimension_numbers=None):
    return {p: d.reason for p, d in decide(params, dimension_numbers).items()}


@walk("model", TABLE)
def test_no_leaf_of_a_model_is_wrong_in_silence(model):
    assert _models.judged(TABLE[model])[0] == {}


def test_the_table_is_as_large_as_it_says_and_its_answers_are_answers():
    record = json.loads((_models.FOLDER / "errors.json").read_text())
    start = record["at commit 312c73b"]
    assert len(TABLE) >= start["models"] >= 40
    kinds = {answer for entries in TABLE.values() for *_, answer, _ in entries.values()}
    assert {"-", "io", "oi", "bio", "iiio", "io/3"} <= kinds
    # A rule that leaves all leaves to the other optimizer does not pass.
    matrices = {
        model: [path for path, entry in entries.items() if entry[2] != "-"]
        for model, entries in TABLE.items()
    }
    assert all(matrices.values())


def test_doubts_are_few():
    """Most leaves of the table are right without a word."""
    counts = np.zeros(3, int)
    for entries in TABLE.values():
        _, reported, needless = _models.judged(entries)
        counts += (len(entries), len(reported), len(needless))
    leaves, reported, needless = counts
    assert needless <= 0.02 * leaves
    assert reported <= 0.10 * leaves


class Block(nnx.Module):
    def __init__(self, rngs):
        self.up = nnx.Linear(16, 32, rngs=rngs)
        self.layer_scale = nnx.Param(np.full((16,), 1e-4, np.float32))
        self.anything = nnx.Param(np.zeros((8,), np.float32))


@pytest.mark.broad
def test_vectors_of_scanned_layers_are_moved_as_vectors():
    """By their siblings, not their names: the first update is AdamW's."""
    make = nnx.split_rngs(splits=12)(nnx.vmap(Block))
    params = nnx.state(make(nnx.Rngs(0)), nnx.Param)
    tx = om.muon(0.02)
    grads = jax.tree.map(jnp.ones_like, params)
    updates, _ = jax.jit(tx.update)(grads, tx.init(params), params)
    scale = jnp.abs(updates["layer_scale"].get_value())
    assert float(jnp.max(scale)) == pytest.approx(0.02 * 0.015, rel=1e-3)
    reasons = _reasons(params)
    assert "stack of vectors" in reasons["anything"]
    assert "batch first" in reasons["up/kernel"]


def test_a_rule_that_makes_a_tree_sees_the_tree():
    params = {"blocks": {"w": _shape(6, 8, 16), "anything": _shape(6, 16)}}
    tree = om.matrices.by_path()(params)
    assert tree["blocks"]["anything"] is None
    assert tree["blocks"]["w"] is not None


def test_the_same_vectors_without_a_stack_of_matrices_are_no_vectors():
    alone = {"up": {"kernel": _shape(16, 32)}, "w_mix": _shape(12, 16)}
    assert decide(alone)["w_mix"].view is not None


def test_attention_elsewhere_says_nothing_of_stacked_layers():
    heads = {name: {"kernel": _shape(8, 4, 2)} for name in ("query", "key", "value")}
    tree = {"attn": heads, "layers": {"kernel": _shape(3, 8, 4)}}
    view = decide(tree)["layers/kernel"].view
    assert (view.reduction_axes, view.output_axes) == ((1,), (2,))


@pytest.mark.parametrize(
    ("gate", "around", "kind"),
    [
        ((64, 8), {"experts": {"up": {"kernel": (8, 64, 32)}}}, "router"),
        ((64, 8), {"w1": (8, 64, 32), "w2": (8, 32, 64)}, "router"),
        ((64, 256), {"up": {"kernel": (64, 256)}, "down": {"kernel": (256, 64)}}, ""),
        ((64, 8), {"up": {"kernel": (64, 256)}}, "counted"),
        ((64, 256), {"attention": {"query": {"kernel": (64, 4, 16)}}}, "counted"),
    ],
)
def test_a_gate_is_a_router_beside_experts_and_a_kernel_beside_others(
    gate, around, kind
):
    shapes = {"mlp": {"gate": {"kernel": gate}, **around}}
    params = jax.tree.map(
        lambda s: _shape(*s), shapes, is_leaf=lambda x: isinstance(x, tuple)
    )
    path = "mlp/gate/kernel"
    assert ("router" in _reasons(params)[path]) == (kind == "router")
    counted = read_from_names(params, decide(params))
    assert (path in counted) == (kind != "")


@pytest.mark.parametrize(
    ("path", "shape", "sections"),
    [
        ("attn/qkv_proj/kernel", (64, 192), 3),
        ("attn/c_attn/kernel", (64, 192), 3),
        ("attn/query_key_value/kernel", (64, 192), 3),
        ("attn/qkv", (64, 192), 3),
        ("mlp/gate_up_proj/kernel", (64, 512), 2),
        ("layers/attn/qkv/kernel", (6, 64, 192), 3),
    ],
)
def test_a_flat_fused_kernel_is_doubted_and_the_line_settles_it(path, shape, sections):
    params = {path: _shape(*shape)}
    clause = _doubts(params)[path]
    line = clause[clause.index("numbers=") + len("numbers=") :]
    numbers = eval(line, {"MatrixDimensionNumbers": om.MatrixDimensionNumbers})
    rule = om.matrices.by_path(numbers=numbers)
    (view,) = (d.view for d in decide(params, rule).values())
    assert view.output_sections == sections
    assert _doubts(params, rule) == {}


def test_grouped_queries_are_told_by_the_output_kernel():
    attn = {"qkv_proj": _shape(64, 96), "o_proj": _shape(64, 64)}
    assert "output_sections=(64, 16, 16)" in _doubts({"attn": attn})["attn/qkv_proj"]


@pytest.mark.broad
def test_layers_of_equinox_are_read_as_they_compute():
    key = jax.random.key(0)
    model = eqx.nn.MLP(8, 4, 32, 2, key=key)
    params = eqx.filter(model, eqx.is_inexact_array)
    given = om.matrices.by_path(numbers={"weight": om.MatrixDimensionNumbers(1, 0)})
    grads = jax.tree.map(lambda x: jax.random.normal(key, x.shape), params)
    grads = eqx.tree_at(lambda m: m.layers[1].weight, grads, replace_fn=lambda x: x**3)
    found = []
    for numbers in (None, given):
        tx = om.muoneq(1.0, dimension_numbers=numbers)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            state = tx.init(params)
        found.append(jax.jit(tx.update)(grads, state, params)[0])
    jax.tree.map(np.testing.assert_array_equal, *found)
    assert decide(params) == decide(grads)


class Custom(eqx.nn.Linear):
    """Somebody's own layer on top of Equinox's."""


@pytest.mark.broad
def test_derived_and_stacked_layers_of_equinox():
    stack = eqx.filter_vmap(lambda key: Custom(8, 4, key=key))
    params = {"layer": stack(jax.random.split(jax.random.key(0), 3))}
    found = decide(params)
    assert str(found["layer/weight"].view) == "3x (4, 8)"
    assert found["layer/bias"].view is None


def test_a_bias_tells_the_orientation_of_torch_weights():
    layer = lambda out, into: {"weight": _shape(out, into), "bias": _shape(out)}
    params = {"a": layer(64, 32), "b": {"weight": _shape(16, 16)}}
    views = {path: d.view for path, d in decide(params).items()}
    assert views["a/weight"].output_axes == views["b/weight"].output_axes == (0,)
    assert _doubts(params) == {}
    assert "may be (out, in" in _doubts({"b": {"weight": _shape(8, 16)}})["b/weight"]
    flax = {"b": {"weight": _shape(8, 16)}, "c": {"kernel": _shape(8, 16)}}
    assert _doubts(flax) == {}


@pytest.mark.parametrize(
    ("kernel", "output", "inputs"),
    [
        ((3, 2, 6, 8), 3, (0, 1, 2)),
        ((3, 2, 8, 6), 2, (0, 1, 3)),  # Flax's with ``transpose_kernel``.
        ((8, 6, 3, 2), 0, (1, 2, 3)),
    ],
)
def test_a_bias_tells_the_outputs_of_a_convolution(kernel, output, inputs):
    params = {"up": {"kernel": _shape(*kernel), "bias": _shape(8)}}
    view = decide(params)["up/kernel"].view
    assert (view.output_axes, view.reduction_axes) == ((output,), inputs)


def test_names_far_up_the_path_say_nothing():
    for root in ("embedder", "router", "PreNorm_0", "conv1d_net"):
        params = {root: {"layers": {"0": {"mlp": {"up": {"kernel": _shape(8, 16)}}}}}}
        assert decide(params)[f"{root}/layers/0/mlp/up/kernel"].view is not None


def test_a_leaf_with_two_axes_and_no_name_of_a_kernel_is_reported():
    params = {"Dense_0": {"kernel": _shape(8, 16)}, "mixture": _shape(4, 8)}
    assert decide(params)["mixture"].view is None
    assert "include='mixture'" in _doubts(params)["mixture"]
    assert _doubts(params, om.matrices.by_path(include="mixture")) == {}


def _warning(params, tx=None):
    tx = om.muon(0.02) if tx is None else tx
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        jax.eval_shape(tx.init, params)
    return " ".join(str(w.message) for w in caught)


def test_complex_kernels_are_reported():
    params = {"Dense_0": {"kernel": _shape(8, 8, dtype=jnp.complex64)}}
    assert "take real matrices" in _warning(params)


def test_init_warns_if_hardly_anything_is_a_matrix():
    kernel = {"up": {"kernel": _shape(8, 16)}}
    assert _warning(kernel) == ""
    assert "No parameter is in a" in _warning(kernel, optax.flatten(om.muon(0.02)))
    assert "No parameter is in a" in _warning({"embed": {"embedding": _shape(64, 8)}})
    many = {"scale": _shape(300)}
    assert "Only 128 of 428" in _warning(kernel | many)
    embedded = _warning(kernel | {"embed": {"embedding": _shape(512, 8)}})
    assert embedded.startswith("Parameters read from names: 1 ")
    chosen = om.muon(0.02, dimension_numbers=om.matrices.by_path(exclude="up"))
    assert _warning(kernel, chosen) == ""


def test_describe_ends_with_the_shares():
    params = {
        "up": {"kernel": _shape(8, 8), "bias": _shape(32)},
        "embed": {"embedding": _shape(4, 8)},
    }
    last = str(om.describe(params, matrix="muon", other="adamw")).splitlines()[-1]
    assert last == "50% muon, 25% embeddings and heads, 25% adamw"


def test_an_entry_for_no_parameter_is_refused():
    params = {"up": {"kernel": _shape(8, 16)}}
    numbers = om.MatrixDimensionNumbers()
    tree = {"up": {"kernel": numbers}, "down": {"kernel": numbers}}
    with pytest.raises(ValueError, match=r"entry for 'down/kernel'"):
        om.muon(0.02, dimension_numbers=tree).init(params)
    for fine in ({"up": numbers}, {"up": {"kernel": numbers}, "down": None}):
        jax.eval_shape(om.muon(0.02, dimension_numbers=fine).init, params)


def test_layers_on_axis_one_are_reported():
    params = {
        "layers": {
            "wi": {"kernel": _shape(256, 24, 1024)},
            "wo": {"kernel": _shape(1024, 24, 256)},
        }
    }
    assert set(_doubts(params)) == {"layers/wi/kernel", "layers/wo/kernel"}
