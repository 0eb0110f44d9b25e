"""The default rule on public models: every leaf as the model's authors would have it.

Paths and axes are those of the named code, sizes are small: width 64, 4 heads of 16,
2 of keys and values, MLP 256, vocabulary 512, context 32, 3 layers.
"""

import jax
import jax.numpy as jnp
import pytest
from _walks import walk

from optax_matrix.matrices import default_rule
from optax_matrix.stacks.layout import make_layout

OTHER = None
# Per model: path, shape, and matrices of (count, out, in), or OTHER.
MODELS = {
    "Gemma (google-deepmind/gemma, gm.nn)": [
        ("embedder/input_embedding", (512, 64), OTHER),
        ("layer_0/attn/q_einsum/w", (4, 64, 16), (1, 64, 64)),
        ("layer_0/attn/kv_einsum/w", (2, 2, 64, 16), (2, 32, 64)),
        ("layer_0/attn/qkv_einsum/w", (3, 4, 64, 16), (3, 64, 64)),
        ("layer_0/attn/attn_vec_einsum/w", (4, 16, 64), (1, 64, 64)),
        ("layer_0/mlp/gating_einsum", (2, 64, 256), (2, 256, 64)),
        ("layer_1/mlp/gating_einsum", (2, 256, 64), (2, 256, 64)),
        ("layer_0/mlp/linear", (256, 64), (1, 64, 256)),
        ("layer_0/pre_attention_norm/scale", (64,), OTHER),
    ],
    "nanodo (google-deepmind/nanodo)": [
        ("embed/embedding", (512, 64), OTHER),
        ("pos_embed/embedding", (32, 64), OTHER),
        ("blocks_0/CausalAttn_0/query/kernel", (64, 4, 16), (1, 64, 64)),
        ("blocks_0/CausalAttn_0/attn_out_proj/kernel", (4, 16, 64), (1, 64, 64)),
        ("blocks_0/Mlp_0/Dense_0/kernel", (64, 256), (1, 256, 64)),
        ("out_ln/scale", (64,), OTHER),
    ],
    "Flax lm1b (google/flax, examples/lm1b)": [
        ("decoder/Embed_0/embedding", (512, 64), OTHER),
        ("decoder/posembed_output/pos_embedding", (1, 32, 64), OTHER),
        (
            "decoder/encoderdecoderblock_0/SelfAttention_0/query/kernel",
            (64, 4, 16),
            (1, 64, 64),
        ),
        (
            "decoder/encoderdecoderblock_0/SelfAttention_0/out/kernel",
            (4, 16, 64),
            (1, 64, 64),
        ),
        (
            "decoder/encoderdecoderblock_0/MlpBlock_0/Dense_1/kernel",
            (256, 64),
            (1, 64, 256),
        ),
        ("decoder/encoderdecoder_norm/scale", (64,), OTHER),
        ("decoder/logitdense/kernel", (64, 512), OTHER),
    ],
    "Haiku transformer (google-deepmind/dm-haiku, examples/transformer)": [
        ("language_model/embed/embeddings", (512, 64), OTHER),
        ("language_model/positional_embeddings", (32, 64), OTHER),
        ("transformer/~/pos_embs", (32, 64), OTHER),
        ("transformer/multi_head_attention/query/w", (64, 64), (1, 64, 64)),
        ("transformer/multi_head_attention/linear/w", (64, 64), (1, 64, 64)),
        ("transformer/linear/w", (64, 256), (1, 256, 64)),
        ("transformer/layer_norm/scale", (64,), OTHER),
    ],
    "Levanter LLaMA (marin-community/levanter)": [
        ("embeddings/token_embeddings/weight/0", (512, 64), OTHER),
        (
            "transformer/layers/stacked/self_attn/q_proj/weight/0",
            (3, 2, 2, 16, 64),
            (3, 64, 64),
        ),
        (
            "transformer/layers/stacked/self_attn/k_proj/weight/0",
            (3, 2, 16, 64),
            (3, 32, 64),
        ),
        (
            "transformer/layers/stacked/self_attn/o_proj/weight/0",
            (3, 64, 4, 16),
            (3, 64, 64),
        ),
        ("transformer/layers/stacked/mlp/up_proj/bias/0", (3, 256), OTHER),
        ("transformer/layers/stacked/input_layernorm/weight/0", (3, 64), OTHER),
        ("lm_head/weight/0", (512, 64), OTHER),
    ],
    "big_vision ViT (google-research/big_vision)": [
        ("embedding/kernel", (16, 16, 3, 64), OTHER),
        ("pos_embedding", (1, 196, 64), OTHER),
        ("cls", (1, 1, 64), OTHER),
        (
            "Transformer/encoderblock_0/MultiHeadDotProductAttention_0/value/kernel",
            (64, 4, 16),
            (1, 64, 64),
        ),
        (
            "Transformer/encoderblock_0/MultiHeadDotProductAttention_0/out/kernel",
            (4, 16, 64),
            (1, 64, 64),
        ),
        (
            "Transformer/encoderblock_0/MlpBlock_0/Dense_0/kernel",
            (64, 256),
            (1, 256, 64),
        ),
        ("Transformer/encoder_norm/scale", (64,), OTHER),
        ("MAPHead_0/MlpBlock_0/Dense_0/kernel", (64, 256), (1, 256, 64)),
        ("head/kernel", (64, 1000), OTHER),
    ],
    "T5X (google-research/t5x, examples/t5)": [
        ("token_embedder/embedding", (512, 64), OTHER),
        ("decoder/relpos_bias/rel_embedding", (4, 32), OTHER),
        ("decoder/layers_0/self_attention/query/kernel", (64, 64), (1, 64, 64)),
        ("decoder/layers_0/mlp/wi_0/kernel", (64, 256), (1, 256, 64)),
        ("decoder/layers_0/mlp/wi/kernel", (64, 2, 256), (2, 256, 64)),
        ("decoder/layers_0/mlp/wo/kernel", (256, 64), (1, 64, 256)),
        ("decoder/layers_0/pre_mlp_layer_norm/scale", (64,), OTHER),
        ("decoder/logits_dense/kernel", (64, 512), OTHER),
    ],
    "AXLearn (apple/axlearn)": [
        ("decoder/emb/token_emb/weight", (512, 64), OTHER),
        (
            "decoder/transformer/repeat/layer/self_attention/attention/i_proj/"
            "i_proj/qkv_proj/weight",
            (5, 3, 64, 4, 16),
            (15, 64, 64),
        ),
        (
            "decoder/transformer/layer0/self_attention/attention/o_proj/weight",
            (64, 4, 16),
            (1, 64, 64),
        ),
        (
            "decoder/transformer/layer0/feed_forward/linear2/weight",
            (256, 64),
            (1, 64, 256),
        ),
        ("decoder/transformer/layer0/feed_forward/norm/scale", (64,), OTHER),
        ("decoder/lm_head/weight", (512, 64), OTHER),
    ],
    "Flax GPT-2 of transformers (huggingface/transformers)": [
        ("transformer/wte/embedding", (512, 64), OTHER),
        ("transformer/wpe/embedding", (32, 64), OTHER),
        ("transformer/h/0/mlp/c_fc/bias", (256,), OTHER),
        ("transformer/ln_f/scale", (64,), OTHER),
        ("lm_head/kernel", (64, 512), OTHER),
        ("score/classifier_head/kernel", (64, 8), OTHER),
    ],
    "EasyDeL LLaMA (erfanzar/EasyDeL)": [
        ("model/embed_tokens/embedding", (512, 64), OTHER),
        ("model/layers/0/self_attn/q_proj/kernel", (64, 64), (1, 64, 64)),
        ("model/layers/0/self_attn/o_proj/kernel", (64, 64), (1, 64, 64)),
        ("model/layers/0/mlp/gate_up_proj/kernel", (64, 512), (1, 512, 64)),
        ("model/layers/0/mlp/down_proj/kernel", (256, 64), (1, 64, 256)),
        ("model/norm/kernel", (64,), OTHER),
        ("lm_head/kernel", (64, 512), OTHER),
    ],
}
CASES = [(model, *leaf) for model, leaves in MODELS.items() for leaf in leaves]


@walk(("model", "path", "shape", "matrices"), CASES)
def test_leaf_of_a_public_model(model, path, shape, matrices):
    leaf = jax.ShapeDtypeStruct(shape, jnp.float32)
    layout = make_layout({path: leaf})
    found = [(p.count, p.rows, p.cols) for v in layout.views.values() for p in v.pieces]
    reason = default_rule(path, leaf)[1]
    assert found == ([] if matrices is None else [matrices]), f"{model}: {reason}"


@walk(
    ("path", "shape", "matrices"),
    [
        ("attn/q_proj/kernel", (64, 4, 16), (1, 64, 64)),
        ("attn/q_proj/kernel", (4, 64, 16), (1, 64, 64)),
        ("attn/qkv/kernel", (64, 3, 4, 16), (3, 64, 64)),
        ("attn/qkv/kernel", (64, 192), (1, 192, 64)),
        ("layers/attn/qkv_proj/kernel", (5, 64, 3, 4, 16), (15, 64, 64)),
        ("attn/qkv/kernel", (3, 64, 32), (3, 32, 64)),
        ("attn/o_proj/kernel", (4, 16, 64), (1, 64, 64)),
        ("attention/attention_output/kernel", (4, 16, 64), (1, 64, 64)),  # Keras.
        ("mlp/wi", (64, 2, 128), (2, 128, 64)),
        ("layers/mlp/wi/kernel", (5, 64, 2, 128), (10, 128, 64)),
        ("mlp/wi/kernel", (8, 64, 128), (8, 128, 64)),
    ],
)
def test_kernel_with_its_axes_in_any_order(path, shape, matrices):
    layout = make_layout({path: jax.ShapeDtypeStruct(shape, jnp.float32)})
    (view,) = layout.views.values()
    assert [(p.count, p.rows, p.cols) for p in view.pieces] == [matrices]


@pytest.mark.parametrize(
    ("path", "shape", "reads", "stream"),
    [
        ("attn/q_proj/kernel", (64, 4, 16), True, 0),
        ("attn/q_einsum/w", (4, 64, 16), True, 1),
        ("layers/attn/k_proj/weight/0", (64, 2, 16, 48), True, 3),
        ("attn/o_proj/weight/0", (64, 4, 16), False, 0),
        ("attn/attn_out_proj/kernel", (4, 16, 64), False, 2),
        ("attn/q_proj/kernel", (4, 4, 1), True, 0),
        ("attn/o_proj/kernel", (4, 1, 4), False, 2),
    ],
)
def test_residual_stream_is_the_longest_axis(path, shape, reads, stream):
    numbers, reason = default_rule(path, jax.ShapeDtypeStruct(shape, jnp.float32))
    side = numbers.reduction_axis if reads else numbers.output_axis
    assert (side, numbers.residual) == (stream, "in" if reads else "out"), reason
