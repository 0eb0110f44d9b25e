"""Penzai's parameters have labels, and their layers the axes of matrices."""

import jax
import pytest

from optax_matrix.matrices.decisions import decide

pz = pytest.importorskip("penzai.pz")
llama = pytest.importorskip("penzai.models.transformer.variants.llamalike_common")

from optax_matrix.adapters import penzai_rule

CONFIG = llama.LlamalikeTransformerConfig(
    num_kv_heads=2,
    query_head_multiplier=2,
    embedding_dim=12,
    projection_dim=4,
    mlp_hidden_dim=16,
    num_decoder_blocks=1,
    vocab_size=10,
    mlp_variant="swiglu",
    tie_embedder_and_logits=False,
)
MATRICES = {
    "m/block_0/attention/query.weights": ((0,), (1, 2, 3)),
    "m/block_0/attention/key.weights": ((0,), (1, 2)),
    "m/block_0/attention/value.weights": ((0,), (1, 2)),
    "m/block_0/attention/output.weights": ((0, 1, 2), (3,)),
    "m/block_0/mlp/gating_linear.weights": ((0,), (1,)),
    "m/block_0/mlp/value_linear.weights": ((0,), (1,)),
    "m/block_0/mlp/out_linear.weights": ((0,), (1,)),
}


def test_the_layers_say_which_axes_they_reduce():
    make = llama.build_llamalike_transformer
    model = make(CONFIG, init_base_rng=jax.random.key(0), name="m")
    params = pz.freeze_params(pz.unbind_params(model)[1])
    found = decide(params, penzai_rule.rule(model, "lm_head"))
    views = {
        params[int(path.split("/")[0])].label: decision.view
        for path, decision in found.items()
    }
    axes = {k: (v.reduction_axes, v.output_axes) for k, v in views.items() if v}
    assert axes == MATRICES
