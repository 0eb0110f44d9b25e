"""Which leaves are matrices: the default rule, overrides, and logical axis names."""

import flax.linen as nn
import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _matrices import ones
from _walks import walk

from optax_matrix.matrices import default_rule, infer, label_params
from optax_matrix.matrices.decisions import decide
from optax_matrix.matrices.rules import PathRule, by_path
from optax_matrix.matrices.view import MatrixDimensionNumbers
from optax_matrix.stacks.layout import make_layout
from optax_matrix.tree import describe

F32 = jnp.float32


def _shape(*shape, dtype=F32):
    return jax.ShapeDtypeStruct(shape, dtype)


@walk(
    ("path", "shape", "view"),
    [
        ("layers/0/mlp/up/kernel", (8, 16), [(1, 16, 8)]),
        ("layers/mlp/up/kernel", (3, 8, 16), [(3, 16, 8)]),
        ("moe/experts/up", (2, 3, 8, 16), [(6, 16, 8)]),
        ("attn/query/kernel", (8, 2, 4), [(1, 8, 8)]),
        ("layers/self_attention/value/kernel", (3, 8, 2, 4), [(3, 8, 8)]),
        ("attn/out/kernel", (2, 4, 6), [(1, 6, 8)]),
        ("attn/q/kernel", (3, 8, 16), [(3, 16, 8)]),
        ("conv1/kernel", (3, 3, 4, 8), [(1, 8, 36)]),
        ("conv/kernel", (8, 16), [(1, 16, 8)]),
        ("patchify/kernel", (4, 4, 3, 8), [(1, 8, 48)]),
        ("patch_mixer/kernel", (6, 3, 8), [(6, 8, 3)]),
        ("downsample/layers/0/kernel", (3, 3, 4, 8), [(1, 8, 36)]),
        ("convnext/layers/mlp/kernel", (3, 8, 16), [(3, 16, 8)]),
        ("convformer/attn/query/kernel", (8, 2, 4), [(1, 8, 8)]),
        ("attention/layers/mlp/out/kernel", (3, 8, 16), [(3, 16, 8)]),
        ("layers/attention/query/kernel", (12, 8, 8), [(12, 8, 8)]),
        ("layers/attention/out/kernel", (3, 8, 16), [(3, 16, 8)]),
        ("layers/2/attention/query/kernel", (8, 2, 4), [(1, 8, 8)]),
        ("sa/query/kernel", (8, 2, 4), [(1, 8, 8)]),
        ("cross_attn/out/kernel", (2, 4, 6), [(1, 6, 8)]),
        ("normalizer_free/kernel", (8, 16), [(1, 16, 8)]),
        ("extra_logits_net/kernel", (8, 16), [(1, 16, 8)]),
        ("model/head/layers/0/kernel", (8, 16), [(1, 16, 8)]),
        ("embed_dim_proj/kernel", (8, 16), [(1, 16, 8)]),
        ("lora_b", (4, 16), [(1, 16, 4)]),
    ],
)
def test_default_view(path, shape, view):
    leaf = _shape(*shape)
    layout = make_layout({path: leaf})
    (resolved,) = layout.views.values()
    assert [(p.count, p.rows, p.cols) for p in resolved.pieces] == view


@walk(
    ("path", "shape", "reason"),
    [
        ("embed/embedding", (256, 8), "embedding"),
        ("wte/kernel", (256, 8), "embedding"),
        ("pos_emb", (256, 8), "embedding"),
        ("lm_head/kernel", (8, 256), "head"),
        ("logits_dense/kernel", (8, 256), "head"),
        ("layers/attn_norm/scale", (4, 8), "scale"),
        ("layers/ln_1/g", (4, 8), "norm"),
        ("layers/mlp/bias", (4, 8), "bias"),
        ("router/kernel", (8, 4), "router"),
        ("model/embed_tokens/kernel", (32, 8), "embedding"),
        ("Embed_0/w", (32, 8), "embedding"),
        ("head_0/kernel", (8, 4), "head"),
        ("mlp/bias_1", (2, 8), "bias"),
        ("attn/q_bias", (2, 8), "bias"),
        ("rnn/bias_h", (2, 8), "bias"),
        ("LayerNorm_0/w", (2, 8), "norm"),
        ("ln_f/w", (2, 8), "norm"),
        ("mamba/A_log", (8, 4), "state-space"),
        ("depthwise_conv/kernel", (3, 3, 1, 8), "depthwise"),
        ("gate", (8,), "vector"),
        ("temperature", (), "scalar"),
        ("w", (1, 8), "length one"),
    ],
)
def test_default_rule_leaves_to_the_other_optimizer(path, shape, reason):
    numbers, why = default_rule(path, _shape(*shape))
    assert numbers is None
    assert reason in why


def test_multi_head_is_no_output_head():
    assert default_rule("multi_head_attention/q/kernel", _shape(8, 8))[0] is not None


def test_integer_leaves_are_no_matrices():
    assert "int8" in default_rule("w", _shape(8, 8, dtype=jnp.int8))[1]


def test_same_decision_for_parameters_and_shapes():
    params = {"up": {"kernel": ones(4, 6), "bias": ones(6)}}
    shapes = jax.eval_shape(lambda: params)
    assert make_layout(params) == make_layout(shapes)


def test_include_and_exclude_by_expression():
    params = {
        "embed": {"embedding": _shape(32, 8)},
        "layers": {str(i): {"kernel": _shape(8, 8)} for i in range(2)},
    }
    rule = by_path(include="embed", exclude=r"layers/1/")
    labels = label_params(rule)(params)
    assert labels["embed"]["embedding"] == "matrix"
    assert labels["layers"]["0"]["kernel"] == "matrix"
    assert labels["layers"]["1"]["kernel"] == "other"


def test_numbers_by_expression_split_fused_kernels():
    rule = by_path(numbers={"qkv": MatrixDimensionNumbers(output_sections=(4, 2, 2))})
    layout = make_layout({"qkv": _shape(6, 8), "dense": _shape(6, 4)}, rule)
    assert sorted(g.shape for g in layout.groups.values()) == [(2, 2, 6), (2, 4, 6)]


def test_bad_expression_is_named():
    with pytest.raises(ValueError, match=r"`include` must be a regular expression"):
        by_path(include="(")


def test_numbers_and_other_rules_are_checked():
    with pytest.raises(ValueError, match=r"`numbers` must be a dict.* got .*up.: 3"):
        by_path(numbers={"up": 3})
    with pytest.raises(
        ValueError, match=r"`otherwise` must be None or a rule.*, got dict"
    ):
        by_path(otherwise={"up": MatrixDimensionNumbers()})


def test_tree_of_optax_numbers_with_none_for_the_rest():
    numbers = optax.contrib.MuonDimensionNumbers
    params = {"a": {"w": _shape(4, 2, 3), "b": _shape(3)}, "c": _shape(4, 6)}
    tree = {"a": {"w": numbers(0, (1, 2)), "b": None}, "c": None}
    assert label_params(tree)(params) == {
        "a": {"w": "matrix", "b": "other"},
        "c": "other",
    }


def test_prefix_tree_covers_all_below():
    params = {"a": {"x": _shape(4, 6), "y": _shape(2, 4)}, "b": _shape(4, 6)}
    tree = {"a": MatrixDimensionNumbers(), "b": None}
    assert set(make_layout(params, tree).views) == {"a/x", "a/y"}


def test_callable_from_parameters_to_a_tree():
    params = {"a": _shape(4, 6), "b": _shape(4)}
    numbers = optax.contrib.MuonDimensionNumbers()
    rule = lambda p: jax.tree.map(lambda x: numbers if x.ndim == 2 else None, p)
    assert set(make_layout(params, rule).views) == {"a"}


def test_uncovered_parameter_is_named():
    with pytest.raises(ValueError, match=r"have no entry for 'b'"):
        make_layout({"a": _shape(4, 6), "b": _shape(4, 6)}, {"a": None})


def test_numbers_on_an_integer_leaf_are_refused():
    leaf = _shape(4, 6, dtype=jnp.int32)
    with pytest.raises(ValueError, match="int32 is not floating"):
        make_layout({"a": leaf}, {"a": MatrixDimensionNumbers()})


def test_anything_else_in_the_tree_is_refused():
    message = "must be a rule, .* or a tree of MatrixDimensionNumbers .* got 'muon'"
    with pytest.raises(ValueError, match=rf"{message} at 'a'\.$"):
        make_layout({"a": _shape(4, 6)}, {"a": "muon"})
    with pytest.raises(ValueError, match=rf"{message}\.$"):
        make_layout({"a": _shape(4, 6)}, "muon")


def _partitioned(*names):
    init = nnx.initializers.lecun_normal()
    return nnx.with_partitioning(init, names, eager_sharding=False)


class _Block(nnx.Module):
    def __init__(self, rngs):
        linear = nnx.LinearGeneral
        self.q = linear(
            6,
            (2, 4),
            kernel_init=_partitioned("embed", "heads", "head_dim"),
            use_bias=False,
            rngs=rngs,
        )
        self.o = linear(
            (2, 4),
            6,
            axis=(-2, -1),
            kernel_init=_partitioned("heads", "head_dim", "embed"),
            use_bias=False,
            rngs=rngs,
        )
        self.w_inner = nnx.Param(
            ones(5, 7), out_sharding=("mlp", "mlp2"), eager_sharding=False
        )
        self.tok = nnx.Param(
            ones(9, 6), out_sharding=("vocab", "embed"), eager_sharding=False
        )
        self.norm = nnx.Param(
            ones(3, 6), out_sharding=("layers", "embed"), eager_sharding=False
        )
        self.experts = nnx.Param(
            ones(2, 6, 4), out_sharding=("expert", "embed", "mlp"), eager_sharding=False
        )
        self.gates = nnx.Param(
            ones(3, 6), out_sharding=("layers", "embed"), eager_sharding=False
        )
        self.w_plain = nnx.Param(ones(4, 6))


@pytest.mark.broad
def test_infer_reads_nnx_axis_names():
    model = _Block(nnx.Rngs(0))
    params = nnx.state(model, nnx.Param)
    layout = make_layout(params, infer(model))
    view = lambda path: (layout.views[path].pieces[0], layout.views[path].residual)
    piece, residual = view("q/kernel")
    assert (piece.count, piece.rows, piece.cols, residual) == (1, 8, 6, "in")
    piece, residual = view("o/kernel")
    assert (piece.count, piece.rows, piece.cols, residual) == (1, 6, 8, "out")
    piece, residual = view("experts")
    assert (piece.count, piece.rows, piece.cols, residual) == (2, 4, 6, "in")
    assert layout.views["w_inner"].residual is None
    decisions = decide(params, infer(model))
    assert "embedding or head" in decisions["tok"].reason
    assert "norm by its name" in decisions["norm"].reason
    assert "not a matrix" in decisions["gates"].reason
    assert "w_plain" in layout.views


def test_infer_agrees_with_itself_on_pure_arrays():
    model = _Block(nnx.Rngs(0))
    rule = infer(model)
    params = nnx.state(model, nnx.Param)
    assert make_layout(params, rule) == make_layout(nnx.to_pure_dict(params), rule)


def test_infer_leaves_scanned_biases_alone():
    bias = nn.LogicallyPartitioned(ones(3, 2, 4), ("layers", "q_heads", "kv"))
    params = {"query": {"bias": bias}}
    assert decide(params, infer(params))["query/bias"].view is None


def test_empty_and_shapeless_leaves():
    assert (
        make_layout({"a": _shape(0, 4)}, {"a": MatrixDimensionNumbers()}).groups == {}
    )
    with pytest.raises(ValueError, match=r"must hold arrays, got 1.0 at 't'"):
        make_layout({"t": 1.0})


def test_numpy_float64_and_numpy_axes():
    numbers = MatrixDimensionNumbers(np.int64(0), np.int64(1))
    (group,) = make_layout({"a": np.ones((4, 6))}, {"a": numbers}).groups.values()
    assert group.dtype == jnp.float32


def test_infer_reads_linen_boxes():
    init = nn.with_logical_partitioning(nn.initializers.ones, ("mlp", "embed"))
    variables = nn.Dense(6, kernel_init=init).init(jax.random.key(0), ones(1, 4))
    layout = make_layout(variables, infer(variables))
    assert layout.views["params/kernel"].residual == "out"


def test_describe_says_where_and_why():
    params = {
        "embed": {"embedding": _shape(32, 8)},
        "qkv": _shape(6, 8),
        "attn": {"query": {"kernel": _shape(8, 2, 4)}},
    }
    rule = by_path(numbers={"qkv": MatrixDimensionNumbers(output_sections=(4, 2, 2))})
    table = describe(params, rule, matrix="muon", other="adamw")
    rows = {row.leaf: row for row in table.rows}
    assert rows["embed/embedding"].optimizer == "adamw"
    assert rows["qkv"].view == "1x (4, 6), 1x (2, 6), 1x (2, 6)"
    assert rows["qkv"].why == "given for 'qkv'"
    assert rows["attn/query/kernel"].why == "attention kernel (in, heads, dim)"
    lines = str(table).splitlines()
    assert lines[0].split() == ["leaf", "shape", "view", "group", "optimizer", "why"]
    assert len(lines) == 5
    assert lines[-1].startswith("30% muon, 70% embeddings and heads")


def test_tied_embedding_is_one_leaf_for_the_other_optimizer():
    class Tied(nnx.Module):
        def __init__(self, rngs):
            self.embed = nnx.Embed(9, 6, rngs=rngs)
            self.head = self.embed

    params = nnx.state(Tied(nnx.Rngs(0)), nnx.Param)
    assert [row.optimizer for row in describe(params).rows] == ["other"]


def _boxed(*axes):
    return nn.LogicallyPartitioned(
        np.ones([4 + i for i in range(len(axes))], np.float32), axes
    )


EXCLUDED = {
    "pos_embed/embedding": ("length", "embed"),
    "wpe/kernel": ("position", "embed"),
    "embed_positions": ("length", "embed"),
    "moe/router/kernel": ("embed", "num_experts"),
    "router": ("embed", "tokens_per_expert"),
    "mamba/conv1d/kernel": ("conv", "mlp", "embed"),
    "mamba/A_log": ("embed", "state"),
    "lm_head/kernel": ("embed", "classes"),
}


@pytest.mark.parametrize("path", EXCLUDED)
def test_infer_leaves_out_what_the_default_rule_leaves_out_by_name(path):
    model = {path: _boxed(*EXCLUDED[path]), "up/kernel": _boxed("embed", "mlp")}
    params = nn.unbox(model)
    layout = make_layout(params, infer(model))
    assert set(layout.views) == {"up/kernel"}
    reason = decide(params, infer(model))[path].reason
    assert reason == default_rule(path, params[path])[1]
    # Who wants it says so.
    rule = by_path(include=path, otherwise=infer(model))
    assert set(make_layout(params, rule).views) == set(params)


def test_infer_leaves_out_depthwise_convolutions():
    kernel = nn.LogicallyPartitioned(ones(3, 3, 1, 8), ("h", "w", None, "embed"))
    model = {"depthwise_conv/kernel": kernel}
    decisions = decide(nn.unbox(model), infer(model))
    assert "depthwise" in decisions["depthwise_conv/kernel"].reason


def test_infer_takes_one_head_for_a_matrix():
    """It has a side of length one only if the names of the axes are not known."""
    kernel = nn.LogicallyPartitioned(ones(6, 1, 4), ("embed", "heads", "kv"))
    layout = make_layout({"a": ones(6, 1, 4)}, infer({"a": kernel}))
    (view,) = layout.views.values()
    assert (view.rows, view.cols, view.residual) == (4, 6, "in")


def test_the_full_model_has_learned_positions_but_no_router():
    model = {path: _boxed(*axes) for path, axes in EXCLUDED.items()}
    rule = infer(model)
    layout = make_layout(nn.unbox(model), PathRule(rule.full))
    sides = {path: view.residual for path, view in layout.views.items()}
    assert sides == {
        "pos_embed/embedding": "out",
        "wpe/kernel": "out",
        "embed_positions": "out",
        "lm_head/kernel": "in",
    }
